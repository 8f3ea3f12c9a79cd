package serve

import (
	"slices"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Widest carries out the largest step that the engine makes, on a rank whose device counts: prompts of as many rows as
// a step takes, a row of every other slot, and a token drawn for each. With observed the logits of all rows are taken
// too.
func (e *Engine) Widest(observed bool) {
	defer e.r.Stack.Release(e.r.Stack.Mark())
	var works []work
	var ready []*sequence
	var last []int32
	rows := 0
	for slot := range e.o.Slots {
		n := max(min(e.o.PrefillRows-rows, e.Positions()), 1)
		s := &sequence{tokens: make([]int32, n), slot: slot, pages: slices.Repeat([]int32{0}, e.pagesFor(n))}
		rows += n
		works, ready, last = append(works, work{s, n}), append(ready, s), append(last, int32(rows-1))
	}
	if observed {
		e.observe = func(*sequence, int, []float32) {}
		defer func() { e.observe = nil }()
	}
	e.enqueue(works, ready, last)
}

// PlanDivergence carries out what [Engine.Diverges] does for a sequence of so many rows, on ranks whose devices count,
// and returns the host memory that it takes, in bytes.
func (e *Engine) PlanDivergence(r *parallel.Rank, m *model.Model, rows int) (host int) {
	mark := r.Stack.Mark()
	m.Head.Logits(r, m.Forward(r, planned(r, []int{rows}), nil))
	r.Stack.Release(mark)
	e.Widest(true)
	return 4 * m.Vocab * (rows + min(e.o.PrefillRows, rows))
}

// PlanProof carries out the largest forwards of [Verify] of so many tokens on a rank whose device counts, and returns
// the host memory that it takes, in bytes. Its traffic is random: this is what a round takes whose sequences fill it.
func PlanProof(r *parallel.Rank, m *model.Model, tokens int) (host int, err error) {
	defer r.Stack.Release(r.Stack.Mark())
	budget, longest := proofSize(m, tokens, 0)
	var seqs []int
	for left := budget; left > 0; left -= seqs[len(seqs)-1] {
		seqs = append(seqs, min(left, longest))
	}
	mark := r.Stack.Mark()
	x := m.TrainForward(r, planned(r, seqs), false)
	m.Head.Logits(r, x.RowRange(0, longest))
	r.Stack.Release(mark)
	pages := 2*(budget+longest)/proofPage + 1
	e, err := NewEngine(r, m, r.Stack, Options{Slots: 64, PageRows: proofPage, Pages: pages,
		PrefillRows: min(512, budget)})
	if err != nil {
		return 0, err
	}
	e.Widest(true)
	return 4 * m.Vocab * (budget + longest), nil
}

// proofPage is the rows of a cache page by which a proof is planned.
const proofPage = 64

// planned is a batch of sequences of so many rows.
func planned(r *parallel.Rank, rows []int) *model.Batch {
	l, n := &kernels.Layout{}, 0
	for _, k := range rows {
		l.Spans = append(l.Spans, kernels.Span{Row: n, Rows: k})
		n += k
	}
	l.Packs = []int32{0, int32(n)}
	return model.NewBatch(r, make([]int32, n), l, nil)
}
