package train

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/optim"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// preference is direct preference optimisation (DPO): pairs of answers, with their log-probabilities under the weights
// that the run starts from. There is no second model: those log-probabilities are computed once, before the first step,
// and kept in the run's folder.
type preference struct {
	trainer    *trainer.Trainer
	packRows   int
	train      []trainer.Sample // 2k the chosen and 2k+1 the rejected answer of pair k
	heldOut    []trainer.Sample // of the held-out pairs that an evaluation takes
	provenance provenance
	computed   bool // the reference is not in the run's folder yet
}

// preferenceObjective is the loss over pairs that a shape asks for.
func preferenceObjective(s *configs.Shape) (optim.Objective, error) {
	o, err := optim.New("dpo", optim.Settings{DPOLoss: s.DPO.Kind, DPOBeta: s.DPO.Beta,
		LabelSmoothing: s.DPO.LabelSmoothing})
	if err != nil {
		return nil, fmt.Errorf("dpo: %w", err)
	}
	return o, nil
}

// openPreference prepares the corpus's pairs for a trainer that has [preferenceObjective]. The model has the weights
// that the run starts from.
func openPreference(s *configs.Shape, t *trainer.Trainer, c *setup.Corpus) (p *preference, err error) {
	p = &preference{trainer: t, packRows: s.Data.PackRows, train: pairSamples(c.Pairs, c.Pairs.Len())}
	p.provenance.definition, p.provenance.train = t.Rank.Dev.Definition().Digest(),
		fmt.Sprintf("%016x", c.Pairs.Digest())
	if c.HeldOutPairs != nil {
		n := min(s.Data.EvalSamples, c.HeldOutPairs.Len())
		p.heldOut, p.provenance.heldOut = pairSamples(c.HeldOutPairs, n), fmt.Sprintf("%d of %016x", n,
			c.HeldOutPairs.Digest())
	}
	p.provenance.weights, err = weightsDigest(t.Model, s.LoRA.Path != "")
	return p, err
}

// openReference reads the reference of a run that is resumed from its file, or computes it.
func (p *preference) openReference(ctx context.Context, path string, resume bool, note func(string, ...any)) error {
	if resume {
		if found, err := p.read(path); found || err != nil {
			return err
		}
	}
	return p.score(ctx, note)
}

// pairSamples returns the samples of the first n pairs, without weights or reference.
func pairSamples(p *data.Preferences, n int) (list []trainer.Sample) {
	for i := range n {
		chosen, rejected := p.Pair(i)
		list = append(list, trainer.Sample{Sample: chosen}, trainer.Sample{Sample: rejected})
	}
	return list
}

// packPairs makes the global batch of packs of pairs, whose loss is the mean over all pairs.
func packPairs(pairs []trainer.Sample, packs []data.Pack) (batch trainer.GlobalBatch) {
	var lengths []int
	for _, p := range packs {
		for _, k := range p.Samples {
			lengths = append(lengths, pairs[2*k].Learned(), pairs[2*k+1].Learned())
		}
	}
	weights, scale := optim.Aggregate("pair", lengths, 0)
	batch.Scale = scale
	for _, p := range packs {
		var pack []trainer.Sample
		for _, k := range p.Samples {
			pack = append(pack, pairs[2*k].WithWeight(weights[0]), pairs[2*k+1].WithWeight(weights[1]))
			weights = weights[2:]
		}
		batch.Packs = append(batch.Packs, pack)
	}
	return batch
}

// evaluate measures held-out pairs, without gradients.
func (p *preference) evaluate(ctx context.Context) (sums optim.Measures, err error) {
	batch := trainer.Pack(p.heldOut, 2, "pair", 0, p.packRows)
	for packs := range slices.Chunk(batch.Packs, len(p.trainer.Replicas)) {
		if err := ctx.Err(); err != nil {
			return sums, err
		}
		for _, b := range p.trainer.LogProbs(packs) {
			p.trainer.Objective.Measure(&sums, b.Rows)
		}
	}
	sums.Loss *= batch.Scale
	return sums, nil
}

// referencePart is how many answers are scored before progress is printed and an interrupt is noticed.
const referencePart = 64

// score computes the reference: the log-probabilities of all answers under the present weights.
func (p *preference) score(ctx context.Context, note func(string, ...any)) error {
	all := len(p.train) + len(p.heldOut)
	note("reference: %d pairs under the weights at the start", all/2)
	shown, done := time.Now(), 0
	for _, list := range [][]trainer.Sample{p.train, p.heldOut} {
		for from := 0; from < len(list); from += referencePart {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted at pair %d of %d of the reference, before the first step: nothing "+
					"was saved", done/2, all/2)
			}
			part := list[from:min(from+referencePart, len(list))]
			p.trainer.EachLogProb(p.packRows, part, func(i int, logprob []float32) {
				part[i].Reference = logprob
			})
			if done += len(part); time.Since(shown) > plainEvery {
				shown = time.Now()
				note("reference: %d of %d pairs", done/2, all/2)
			}
		}
	}
	p.computed = true
	return nil
}

// record fills in what a step measured, and returns fields for the progress line.
func (p *preference) record(rec *runlog.Record, m optim.Measures) []string {
	n := float64(m.Pairs)
	rec.Margin, rec.Preferred = runlog.Num((m.Chosen-m.Rejected)/n), runlog.Num(float64(m.Preferred)/n)
	rec.ChosenReward, rec.RejectedReward = runlog.Num(m.Chosen/n), runlog.Num(m.Rejected/n)
	rec.ChosenLogProb, rec.RejectedLogProb = runlog.Num(m.ChosenLogProb/n), runlog.Num(m.RejectedLogProb/n)
	return []string{fmt.Sprintf("margin %.3f", float64(*rec.Margin)), fmt.Sprintf("prefers %.0f%%",
		100*float64(*rec.Preferred))}
}
