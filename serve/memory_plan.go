package serve

import (
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// PlanLargestStep runs the largest steps of the engine on a meta device: prompts of PrefillRows rows, a row of every
// other slot, and a sampled token for each; and where experts are cut over ranks, which take more memory for few tokens
// than for some more, prompts of that many. With withLogits the logits of all rows are computed too.
func (e *Engine) PlanLargestStep(withLogits bool) {
	e.planStep(e.options.PrefillRows, withLogits)
	if few := e.m.FewTokens(); 0 < few && few < e.options.PrefillRows {
		e.planStep(few, withLogits)
	}
}

// planStep runs a step with prompts of so many rows.
func (e *Engine) planStep(prefill int, withLogits bool) {
	defer e.r.Stack.Release(e.r.Stack.Mark())
	var batch []scheduled
	var ready []*sequence
	var last []int32
	rows := 0
	for slot := range e.options.Slots {
		n := max(min(prefill-rows, e.MaxLength()), 1)
		s := &sequence{tokens: make([]int32, n), slot: slot, pages: slices.Repeat([]int32{0}, e.pagesFor(n))}
		rows += n
		batch, ready, last = append(batch, scheduled{s, n}), append(ready, s), append(last, int32(rows-1))
	}
	if withLogits {
		e.onLogits = func(*sequence, int, []float32) {}
		defer func() { e.onLogits = nil }()
	}
	e.enqueue(batch, ready, last)
}

// PlanDivergence runs [MeasureDivergence] for sequences of at most so many rows, of which so many tokens are kept, on
// the meta device of a rank. It returns the host memory that it takes, in bytes.
func PlanDivergence(r *parallel.Rank, m *model.Model, rows, kept int) (host int) {
	defer r.Stack.Release(r.Stack.Mark())
	chunk := min(rows, fidelityChunk)
	m.Head.Logits(r, m.Forward(r, plannedBatch(r, []int{rows}), nil).RowRange(0, chunk))
	return 4 * m.Vocab * (chunk + kept)
}

// PlanVerify runs the largest forwards of [Verify] for so many tokens on the meta device of a rank. It returns the host
// memory that they take, in bytes. The traffic of Verify is random; this plans for a round that sequences fill.
func PlanVerify(r *parallel.Rank, m *model.Model, tokens int) (host int, err error) {
	defer r.Stack.Release(r.Stack.Mark())
	budget, longest := roundSize(m, tokens, 0, max(r.Size, 1))
	var seqs []int
	for left := budget; left > 0; left -= seqs[len(seqs)-1] {
		seqs = append(seqs, min(left, longest))
	}
	mark := r.Stack.Mark()
	x := m.TrainForward(r, plannedBatch(r, seqs), false)
	m.Head.Logits(r, x.RowRange(0, longest))
	r.Stack.Release(mark)
	pages := 2*(budget+longest)/planPageRows + 1
	e, err := NewEngine(r, m, r.Stack, Options{Slots: 64, PageRows: planPageRows, Pages: pages,
		PrefillRows: min(512, budget)})
	if err != nil {
		return 0, err
	}
	e.PlanLargestStep(true)
	return 4 * m.Vocab * (budget + longest), nil
}

// planPageRows is the page size for which PlanVerify plans.
const planPageRows = 64

// plannedBatch is a batch of sequences with these numbers of rows.
func plannedBatch(r *parallel.Rank, rows []int) *model.Batch {
	l, n := &kernels.Layout{}, 0
	for _, k := range rows {
		l.Spans = append(l.Spans, kernels.Span{Row: n, Rows: k})
		n += k
	}
	l.Segments = []int32{0, int32(n)}
	return model.NewBatch(r, make([]int32, n), l, nil)
}

// PlanDecode runs a step that decodes a row of every slot, each at so many positions, on a meta device.
func (e *Engine) PlanDecode(length int) {
	defer e.r.Stack.Release(e.r.Stack.Mark())
	var batch []scheduled
	var ready []*sequence
	var last []int32
	for slot := range e.options.Slots {
		s := &sequence{tokens: make([]int32, length), cached: length - 1, slot: slot,
			pages: slices.Repeat([]int32{0}, e.pagesFor(length))}
		batch, ready, last = append(batch, scheduled{s, 1}), append(ready, s), append(last, int32(slot))
	}
	e.enqueue(batch, ready, last)
}
