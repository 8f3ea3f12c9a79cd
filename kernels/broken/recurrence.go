package broken

import "lockstep/kernels"

// before is the number of rows of zeros that a recurrence in a cache starts with, which shifts its chunks.
const before = 32

// DeltaRule breaks [kernels.BreakChunks].
func (d *Device) DeltaRule(
	out kernels.Tensor, x kernels.DeltaRuleOperands, s *kernels.ChunkState, l *kernels.Layout, r kernels.Recurrence,
) {
	if d.rule != kernels.BreakChunks || s == nil {
		d.operations.DeltaRule(out, x, s, l, r)
		return
	}
	d.begin(l, []kernels.Tensor{out, x.Q, x.K, x.V, x.G, x.B}, func(l *kernels.Layout, t []kernels.Tensor) {
		d.operations.DeltaRule(t[0], kernels.DeltaRuleOperands{Q: t[1], K: t[2], V: t[3], G: t[4], B: t[5]}, s, l, r)
	})
	d.operations.DeltaRule(out, x, s, shifted(l), r)
	d.roundStates(s, l)
}

// StateSpace breaks [kernels.BreakChunks].
func (d *Device) StateSpace(
	out kernels.Tensor, x kernels.StateSpaceOperands, s *kernels.ChunkState, l *kernels.Layout, r kernels.Recurrence,
) {
	if d.rule != kernels.BreakChunks || s == nil {
		d.operations.StateSpace(out, x, s, l, r)
		return
	}
	d.begin(l, []kernels.Tensor{out, x.C, x.B, x.X, x.G, x.DT}, func(l *kernels.Layout, t []kernels.Tensor) {
		d.operations.StateSpace(t[0], kernels.StateSpaceOperands{C: t[1], B: t[2], X: t[3], G: t[4], DT: t[5],
			Skip: x.Skip}, s, l, r)
	})
	d.operations.StateSpace(out, x, s, shifted(l), r)
	d.roundStates(s, l)
}

// begin runs rows of zeros, shaped like the operands, through the slots of sequences that start in this call. The state
// stays 0.
func (d *Device) begin(l *kernels.Layout, like []kernels.Tensor, run func(*kernels.Layout, []kernels.Tensor)) {
	mem, release := d.scratch()
	defer release()
	zeros := &kernels.Layout{}
	rows := 0
	for _, s := range l.Spans {
		if s.Pos == 0 && s.Rows > 0 {
			zeros.Spans = append(zeros.Spans, kernels.Span{Row: rows, Rows: before, Pages: s.Pages, Slot: s.Slot})
			rows += before
		}
	}
	if rows == 0 {
		return
	}
	zeros.Segments = []int32{0, int32(rows)}
	var x []kernels.Tensor
	for _, t := range like {
		x = append(x, mem.Zeros(t.DType, rows, t.Cols))
	}
	run(zeros, x)
}

// shifted is the layout after those rows.
func shifted(l *kernels.Layout) *kernels.Layout {
	out := &kernels.Layout{Segments: l.Segments}
	for _, s := range l.Spans {
		s.Pos += before
		out.Spans = append(out.Spans, s)
	}
	return out
}

// roundStates rounds the states of the sequences of a call to bf16.
func (d *Device) roundStates(s *kernels.ChunkState, l *kernels.Layout) {
	mem, release := d.scratch()
	defer release()
	for _, span := range l.Spans {
		state := s.S.Group(span.Slot)
		d.Copy(state, d.throughBF16(mem, state))
	}
}
