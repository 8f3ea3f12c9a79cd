package serve

import (
	"context"
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Divergence measures how far the engine is from a training forward on one sequence.
type Divergence struct {
	// Mean over the generated positions of KL(training || rollout) over the whole vocabulary, in nats.
	KL         float64
	Logits     int // number of logits compared
	Mismatches int // of them, different bits
}

// MeasureDivergence decodes a prompt and the tokens ids that followed it with the engine, and compares the logits of
// each generated token with the training forward of m on rank r. The KL is that of the distributions at a temperature.
// Like Run, it requires that no sequence is running.
func (e *Engine) MeasureDivergence(ctx context.Context, r *parallel.Rank, m *model.Model, prompt, ids []int32,
	temperature float32) (d Divergence, err error) {
	all := slices.Concat(prompt, ids)
	want := allLogits(r, m, all[:len(all)-1])
	v := m.Vocab
	e.onLogits = func(_ *sequence, position int, logits []float32) {
		if position < len(prompt)-1 || position >= len(all)-1 {
			return
		}
		row := want[position*v : (position+1)*v]
		d.Logits += v
		if bad := mismatches(logits, row); bad > 0 {
			d.Mismatches += bad
			d.KL += divergence(row, logits, kernels.Inverse(temperature)) / float64(len(ids))
		}
	}
	defer func() { e.onLogits = nil }()
	_, err = e.Run(ctx, []Request{{Prompt: prompt, Forced: ids, MaxTokens: len(ids), TopP: 1}})
	return d, err
}
