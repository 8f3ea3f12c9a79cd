package bench

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/plan"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// recomputeRow is a line of the table of [Recompute]: a value of run.recompute.
type recomputeRow struct {
	mode   string
	keep   model.Policy
	chosen string  // what blocks keep
	bytes  int     // that the plan takes
	fits   bool    // where it does not, it is not timed
	speed  float64 // tokens a second
}

// Recompute prints the speed of a shape's training steps by each value of run.recompute whose plan fits, on packs
// of random tokens. The learning rate is 0, so that every step works on the same weights. Before the clock runs, all
// must give the same gradients on every bit.
func Recompute(ctx context.Context, s *configs.Shape, o Options) error {
	if err := errors.Join(o.validate(), oneRank(s)); err != nil {
		return err
	}
	alone := *s // the plan is that of training: no engine for held-out questions, no proof
	alone.Data.EvalSamples, alone.Run.VerifyTokens = 0, 0
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		return err
	}
	defer dev.Close()
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		rows, err := planRecompute(r, &alone)
		if err != nil {
			return err
		}
		if err := timeRecompute(ctx, r, &alone, rows, o.Steps); err != nil {
			return err
		}
		fmt.Fprintf(o.Out, "%s on %s, %s: %d packs of %d tokens a step, %d at a time; gradients equal on every bit\n\n",
			s.Run.Name, dev.Name(), s.Model.DType, s.Run.Packs, s.Data.PackRows, s.Run.MicroBatch)
		return printRecompute(o.Out, rows)
	})
}

// planRecompute plans each value and reserves the stack's memory for the largest plan that fits.
func planRecompute(r *parallel.Rank, s *configs.Shape) (rows []recomputeRow, err error) {
	have, largest := plan.MemoryFor(r.Dev, s), plan.Memory{}
	var of *plan.Plan
	for _, mode := range []string{"auto", "full", "none"} {
		t := *s
		t.Run.Recompute = mode
		p, err := plan.New(r.Dev, &t)
		if err != nil {
			return nil, err
		}
		n, err := p.Choose(have)
		if err != nil {
			return nil, err
		}
		row := recomputeRow{mode: mode, keep: p.Keep, chosen: p.Model.Summary(p.Keep, p.Extent()), bytes: n.Total(),
			fits: have == 0 || n.Total() <= have}
		if row.fits && n.Total() > largest.Total() {
			largest, of = n, p
		}
		rows = append(rows, row)
	}
	if of == nil {
		return nil, fmt.Errorf("out of memory: training takes %s at least, and %s has %s available",
			plan.Size(rows[1].bytes), r.Dev.Name(), plan.Size(have))
	}
	plan.Reserve(r, of.Rank)
	return rows, nil
}

// timeRecompute fills in the speeds of the rows that fit.
func timeRecompute(ctx context.Context, r *parallel.Rank, s *configs.Shape, rows []recomputeRow, steps int) error {
	m, _, err := setup.OpenTrained(r.Dev, s)
	if err != nil {
		return err
	}
	o, err := setup.TrainerOptions(s, steps, nil)
	if err != nil {
		return err
	}
	o.Schedule.Peak, o.Schedule.Final = 0, 0
	t := trainer.New(r, m, o)
	batch := trainer.Supervised(randomPacks(s, m))
	var first [][sha256.Size]byte
	for i := range rows {
		row := &rows[i]
		if !row.fits {
			continue
		}
		t.Keep = row.keep
		sums := t.Gradients(batch.Packs)
		if first == nil {
			first = sums
		}
		if !slices.Equal(sums, first) {
			return fmt.Errorf("gradients by run.recompute = %q differ from those before: this is a bug", row.mode)
		}
		if row.speed, err = trainingSpeed(ctx, t, batch, steps); err != nil {
			return err
		}
	}
	return nil
}

// trainingSpeed returns the tokens a second of some steps.
func trainingSpeed(ctx context.Context, t *trainer.Trainer, batch trainer.GlobalBatch, steps int) (float64, error) {
	start, tokens := time.Now(), 0
	for step := range steps {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		tokens += t.Step(step+1, batch).Tokens
	}
	err := t.Rank.Dev.Sync()
	return float64(tokens) / time.Since(start).Seconds(), err
}

func printRecompute(w io.Writer, rows []recomputeRow) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "tokens/s\tof full\tmemory\t  run.recompute")
	for _, row := range rows {
		if row.fits {
			fmt.Fprintf(tab, "%.0f\t%.2f\t%s\t  %s: %s\n", row.speed, row.speed/rows[1].speed, plan.Size(row.bytes),
				row.mode, row.chosen)
		} else {
			fmt.Fprintf(tab, "-\t-\t%s\t  %s: does not fit\n", plan.Size(row.bytes), row.mode)
		}
	}
	return tab.Flush()
}
