package cpu

import "lockstep/kernels"

// StateSpace is the chunked scan of Mamba2 as kernels.Mamba states it.
func (d *Device) StateSpace(out kernels.Tensor, x kernels.StateSpaceOperands, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	op := d.stateSpace(x, s, r)
	op.check("state space", l, out, x.G, x.DT)
	op.run(out, l)
}

// StateSpaceBackward is stated at chunkedGrad.
func (d *Device) StateSpaceBackward(dx kernels.StateSpaceOperands, dout kernels.Tensor, x kernels.StateSpaceOperands,
	l *kernels.Layout, r kernels.Recurrence) {
	op := &chunkedGrad{
		chunked: *d.stateSpace(x, nil, r), dout: d.matrix(dout), dq: d.matrix(dx.C), dk: d.matrix(dx.B),
		dv: d.matrix(dx.X), dg: dx.G, ddt: dx.DT,
		dskip: make([]float32, x.X.Rows*r.Heads),
	}
	op.check("state space backward", l, dout, dx.X, x.G, x.DT, dx.G, dx.DT)
	op.run(l)
	if !dx.Skip.IsNil() {
		mustSegments("state space backward", l.Segments, x.X.Rows)
		sums := d.rowSums("state space backward", "dskip", dx.Skip, r.Heads, l.Segments)
		d.addRows(sums, op.dskip, l.Segments)
	}
}

func (d *Device) stateSpace(x kernels.StateSpaceOperands, s *kernels.ChunkState, r kernels.Recurrence) *chunked {
	return &chunked{
		d: d, shape: r, group: r.Heads / r.KeyHeads, q: d.matrix(x.C), k: d.matrix(x.B), v: d.matrix(x.X), g: x.G,
		state: s, space: &stateSpace{dt: x.DT, skip: vector("state space", "skip", x.Skip, r.Heads)},
	}
}
