package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/train/plan"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// RLOptions are the answers that a benchmark of objectives learns from.
type RLOptions struct {
	Objectives []string // nil: all that have a derivative of their own
	Answers    int      // of an update
	Prompt     Span     // tokens
	New        Span     // tokens of an answer
	Seed       uint64
	Updates    int // that are timed, of each objective in each way
	Out        io.Writer
}

// rlWay is how an update computes its gradient.
type rlWay int

const (
	// one forward, whose log-probabilities become derivatives before the logits are gone, and one backward
	fused rlWay = iota
	twice       // a forward for log-probabilities, then forward and backward with derivatives that are given
	// as twice, after a forward for the log-probabilities of the old policy, for stacks that do not use those of the
	// rollout
	thrice
	rlWays
)

// RL prints the time of one update (gradients and optimizer) on given answers for each objective: fused, and in
// the ways of stacks that keep log-probabilities and loss apart. Prompts, answers and advantages are random, recorded
// log-probabilities and the reference's are those of the model itself. The rate is 0, so that every update works on the
// same numbers. Before the clock runs, all ways must give the same gradients on every bit; fused and twice also where
// answers are off the policy, by recorded log-probabilities that differ. An objective that fails is the last: those
// before are printed.
func RL(ctx context.Context, s *configs.Shape, o RLOptions) error {
	if len(o.Objectives) == 0 {
		o.Objectives = slices.DeleteFunc(optim.Names(), func(name string) bool { return name == "custom" })
	}
	if slices.Contains(o.Objectives, "custom") {
		return errors.New(`--objective "custom": is computed by an external program, name another`)
	}
	if err := oneRank(s); err != nil {
		return err
	}
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		return err
	}
	defer dev.Close()
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		plan, err := plan.Reserved(r, s)
		if err != nil {
			return err
		}
		m, _, err := setup.OpenTrained(dev, s)
		if err != nil {
			return err
		}
		b, err := newRLBench(r, m, s, plan.Keep, o)
		if err != nil {
			return err
		}
		var rows []rlRow
		for _, name := range o.Objectives {
			row, failed := b.objective(ctx, name, o.Updates)
			if err = failed; err != nil {
				break
			}
			rows = append(rows, row)
		}
		if len(rows) == 0 {
			return err
		}
		fmt.Fprintf(o.Out, "%s on %s, %s: %d answers of %v tokens to prompts of %v, %d rows an update\n\n", s.Run.Name,
			dev.Name(), s.Model.DType, o.Answers, &o.New, &o.Prompt, b.rows)
		return errors.Join(printRL(o.Out, rows), err)
	})
}

// rlBench is a trainer and its samples.
type rlBench struct {
	t        *trainer.Trainer
	samples  []trainer.Sample // in pairs with one prompt
	longest  int              // most tokens of an answer
	packRows int
	rows     int // of all samples
	rng      *rand.Rand
}

// rlRow is an objective's line of the table.
type rlRow struct {
	name    string
	seconds [rlWays]float64 // medians; 0: no such way
	ratios  [rlWays]float64 // medians of those to the fused update of the same round
}

func newRLBench(r *parallel.Rank, m *model.Model, s *configs.Shape, keep model.Policy, o RLOptions) (*rlBench, error) {
	if o.Answers%2 != 0 {
		return nil, fmt.Errorf("--answers %d: want an even number: preferences compare two answers", o.Answers)
	}
	if most, pair := o.Prompt.High+o.New.High, 2*(o.Prompt.High+o.New.High); most > m.MaxLength ||
		pair > s.Data.PackRows {
		return nil, fmt.Errorf("--prompt and --new need up to %d positions, twice in a pack, the model has %d and a "+
			"pack %d: lower them", most, m.MaxLength, s.Data.PackRows)
	}
	by, err := setup.TrainerOptions(s, max(s.Run.Steps, s.Optim.WarmupSteps+1), keep)
	if err != nil {
		return nil, err
	}
	by.Schedule.Peak, by.Schedule.Final = 0, 0
	b := &rlBench{t: trainer.New(r, m, by), longest: o.New.High, packRows: s.Data.PackRows,
		rng: rand.New(rand.NewPCG(o.Seed, 4))}
	for len(b.samples) < o.Answers {
		prompt := b.tokens(o.Prompt.draw(b.rng))
		b.samples = append(b.samples, b.sample(prompt, o.New.draw(b.rng)), b.sample(prompt, o.New.draw(b.rng)))
	}
	for _, le := range b.samples {
		b.rows += len(le.IDs)
	}
	trainer.EachLogProb(r, m, b.packRows, b.samples, func(i int, logprob []float32) {
		b.samples[i].Rollout, b.samples[i].Reference = logprob, logprob
	})
	return b, nil
}

func (b *rlBench) tokens(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = b.rng.Int32N(int32(b.t.Model.Vocab))
	}
	return ids
}

// sample is an answer of n tokens with its advantage.
func (b *rlBench) sample(prompt []int32, n int) trainer.Sample {
	all := slices.Concat(prompt, b.tokens(n))
	le := trainer.Sample{Sample: data.Sample{IDs: all[:len(all)-1], Targets: slices.Clone(all[1:])}}
	for i := range len(prompt) - 1 {
		le.Targets[i] = -1
	}
	le.Advantage = slices.Repeat([]float32{float32(b.rng.NormFloat64())}, len(le.IDs))
	return le
}

// objective measures one objective.
func (b *rlBench) objective(ctx context.Context, name string, updates int) (row rlRow, err error) {
	row.name = name
	s, err := optim.Resolve(name, optim.Settings{})
	if err != nil {
		return row, err
	}
	objective, err := optim.New(name, s)
	if err != nil {
		return row, err
	}
	ways := []rlWay{fused, twice, thrice}
	switch {
	case s.Advantage == "": // no policy that samples
		ways = ways[:2]
	}
	batch := b.batch(s)
	if err := b.agree(objective, batch, ways); err != nil {
		return row, fmt.Errorf("%s: %w", name, err)
	}
	if err := b.agree(objective, b.offPolicy(batch), ways[:min(len(ways), 2)]); err != nil {
		return row, fmt.Errorf("%s off the policy: %w", name, err)
	}
	return row, b.time(ctx, &row, objective, batch, ways, updates)
}

// batch lays the samples out for an objective with complete settings.
func (b *rlBench) batch(s optim.Settings) trainer.GlobalBatch {
	samples, unit := slices.Clone(b.samples), 1
	if s.Advantage != "" { // without kl_coef it has no reference
		for i := range samples {
			samples[i].Reference = nil
		}
	}
	if s.Aggregate == "pair" {
		unit = 2
	}
	return trainer.Pack(samples, unit, s.Aggregate, b.longest, b.packRows)
}

// time fills in seconds and ratios of updates in each way, interleaved.
func (b *rlBench) time(ctx context.Context, row *rlRow, objective optim.Objective, batch trainer.GlobalBatch,
	ways []rlWay, updates int) error {
	var seconds, ratios [rlWays][]float64
	for round := range updates + 1 { // the first warms up
		for _, way := range ways {
			if err := ctx.Err(); err != nil {
				return err
			}
			start := time.Now()
			o, given := learnBy(b.t, way, objective, batch)
			b.t.Objective = o
			b.t.Step(round+1, given)
			if err := b.t.Rank.Dev.Sync(); err != nil {
				return err
			}
			if round > 0 {
				took := time.Since(start).Seconds()
				seconds[way] = append(seconds[way], took)
				ratios[way] = append(ratios[way], took/seconds[fused][round-1])
			}
		}
	}
	for _, way := range ways {
		row.seconds[way], row.ratios[way] = middle(seconds[way]), middle(ratios[way])
	}
	return nil
}

// middle returns the median, of an even number the upper one.
func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// offPolicy returns the batch with samples whose recorded log-probabilities differ from the model's by noise.
func (b *rlBench) offPolicy(batch trainer.GlobalBatch) trainer.GlobalBatch {
	out := trainer.GlobalBatch{Scale: batch.Scale}
	for _, p := range batch.Packs {
		p = slices.Clone(p)
		for i := range p {
			p[i].Rollout = slices.Clone(p[i].Rollout)
			for t := range p[i].Rollout {
				p[i].Rollout[t] += float32(b.rng.NormFloat64() / 4)
			}
		}
		out.Packs = append(out.Packs, p)
	}
	return out
}

// agree returns an error where a way's gradients differ from those of the first on a bit.
func (b *rlBench) agree(objective optim.Objective, batch trainer.GlobalBatch, ways []rlWay) error {
	var first [][sha256.Size]byte
	for _, way := range ways {
		o, given := learnBy(b.t, way, objective, batch)
		b.t.Objective = o
		sums := b.t.Gradients(given.Packs)
		if way == fused {
			first = sums
		}
		for i, p := range b.t.Model.Trained() {
			if sums[i] != first[i] {
				return fmt.Errorf("the gradient of %s, by %d forwards and one, differs: this is a bug", p.Name, way+1)
			}
		}
	}
	return nil
}

// learnBy returns the objective and the samples by which a way computes the gradient, after the way's forwards without
// gradients.
func learnBy(t *trainer.Trainer, way rlWay, o optim.Objective, batch trainer.GlobalBatch) (optim.Objective,
	trainer.GlobalBatch) {
	if way == fused {
		return o, batch
	}
	if way == thrice {
		batch = filled(t, batch, func(le *trainer.Sample, v []float32) {
			le.Old = v
		}, func(rows optim.Rows) []float32 { return rows.LogProb })
	}
	return optim.Custom{}, filled(t, batch, func(le *trainer.Sample, v []float32) {
		le.Weight = v
	}, func(rows optim.Rows) []float32 {
		d := make([]float32, len(rows.Targets))
		o.Derivative(d, rows)
		return d
	})
}

// filled returns a copy of the batch. fill sets in each sample its part of what values computes of a micro-batch's
// rows.
func filled(t *trainer.Trainer, batch trainer.GlobalBatch, fill func(le *trainer.Sample, v []float32),
	values func(rows optim.Rows) []float32) trainer.GlobalBatch {
	out := trainer.GlobalBatch{Scale: batch.Scale}
	for micro := range slices.Chunk(batch.Packs, t.MicroBatch) {
		b, at := trainer.LogProbs(t.Rank, t.Model, micro), 0
		v := values(b.Rows)
		for _, p := range micro {
			p = slices.Clone(p)
			for i := range p {
				fill(&p[i], b.Of(at, v))
				at++
			}
			out.Packs = append(out.Packs, p)
		}
	}
	return out
}

// printRL writes the table.
func printRL(w io.Writer, rows []rlRow) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "fused, s\ttwo forwards, s\tof fused\tthree, s\tof fused\t  objective, gradients equal on "+
		"every bit")
	for _, r := range rows {
		fmt.Fprintf(tab, "%.4f", r.seconds[fused])
		for way := twice; way < rlWays; way++ {
			if r.seconds[way] == 0 {
				fmt.Fprintf(tab, "\t-\t-")
			} else {
				fmt.Fprintf(tab, "\t%.4f\t%.2f", r.seconds[way], r.ratios[way])
			}
		}
		fmt.Fprintf(tab, "\t  %s\n", r.name)
	}
	return tab.Flush()
}
