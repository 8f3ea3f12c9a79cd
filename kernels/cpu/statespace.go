package cpu

import "lockstep/kernels"

// StateSpace is the chunked scan of Mamba2 as kernels.Mamba states it.
func (d *Device) StateSpace(out, c, b, x, g, dt, skip kernels.Tensor, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	op := d.stateSpace(c, b, x, g, dt, skip, s, r)
	op.check("state space", l, out, g, dt)
	op.run(out, l)
}

// StateSpaceBackward is stated at chunkedGrad.
func (d *Device) StateSpaceBackward(dc, db, dx, dg, ddt, dskip, dout, c, b, x, g, dt, skip kernels.Tensor,
	l *kernels.Layout, r kernels.Recurrence) {
	op := &chunkedGrad{
		chunked: *d.stateSpace(c, b, x, g, dt, skip, nil, r), dout: d.matrix(dout), dq: d.matrix(dc), dk: d.matrix(db),
		dv: d.matrix(dx), dg: dg, ddt: ddt,
		dskip: make([]float32, x.Rows*r.Heads),
	}
	op.check("state space backward", l, dout, dx, g, dt, dg, ddt)
	op.run(l)
	if !dskip.IsNil() {
		d.addRows(vector("state space backward", "dskip", dskip, r.Heads), op.dskip, rowBlocks("state space backward",
			l.Packs, x.Rows))
	}
}

func (d *Device) stateSpace(c, b, x, g, dt, skip kernels.Tensor, s *kernels.ChunkState, r kernels.Recurrence) *chunked {
	return &chunked{
		d: d, shape: r, group: r.Heads / r.KeyHeads, q: d.matrix(c), k: d.matrix(b), v: d.matrix(x), g: g, state: s,
		space: &stateSpace{dt: dt, skip: vector("state space", "skip", skip, r.Heads)},
	}
}
