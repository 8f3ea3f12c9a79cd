package serve

import (
	"context"
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Divergence of the engine from a training forward over one sequence.
type Divergence struct {
	// mean over the positions that chose a token, nats, of KL(training || rollout) summed over the vocabulary
	KL     float64
	Logits int // compared
	Differ int // of them, on a bit
}

// Diverges feeds a prompt and, one by one, the tokens that followed it through the engine, and holds every logit that
// chose one against the training forward of m on rank r. The KL is that of the distributions at a temperature. Like Run
// it wants other sequences to be waiting.
func (e *Engine) Diverges(ctx context.Context, r *parallel.Rank, m *model.Model, prompt, ids []int32,
	temperature float32) (d Divergence, err error) {
	all := slices.Concat(prompt, ids)
	want := allLogits(r, m, all[:len(all)-1])
	v := m.Vocab
	e.observe = func(_ *sequence, position int, logits []float32) {
		if position < len(prompt)-1 || position >= len(all)-1 {
			return
		}
		row := want[position*v : (position+1)*v]
		d.Logits += v
		if bad := mismatches(logits, row); bad > 0 {
			d.Differ += bad
			d.KL += divergence(row, logits, kernels.Inverse(temperature)) / float64(len(ids))
		}
	}
	defer func() { e.observe = nil }()
	_, err = e.Run(ctx, []Request{{Prompt: prompt, Forced: ids, MaxTokens: len(ids), TopP: 1}})
	return d, err
}
