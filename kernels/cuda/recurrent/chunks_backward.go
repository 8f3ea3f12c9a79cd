//go:build cuda

package recurrent

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/rows"
)

// chunkedGrad are the gradients of a call, as kernels/cpu/chunks_backward.go states them.
type chunkedGrad struct {
	chunked
	dout, dq, dk, dv, dg kernels.Tensor
	db                   kernels.Tensor // delta rule
	ddt, dskip           kernels.Tensor // state space
}

// DeltaRuleBackward writes dq, dk, dv, db and dg F32, for layouts without a cache.
func (d *Ops) DeltaRuleBackward(dx kernels.DeltaRuleOperands, dout kernels.Tensor, x kernels.DeltaRuleOperands,
	l *kernels.Layout, r kernels.Recurrence) {
	op := chunkedGrad{chunked: chunked{d: d, r: r, delta: true, q: x.Q, k: x.K, v: x.V, g: x.G, b: x.B},
		dout: dout, dq: dx.Q, dk: dx.K, dv: dx.V, dg: dx.G, db: dx.B}
	op.backward(l)
}

// StateSpaceBackward writes dc, db, dx, dg F32 and ddt F32 and adds to dskip F32 [1, Heads], which may be nil, for
// layouts without a cache.
func (d *Ops) StateSpaceBackward(dx kernels.StateSpaceOperands, dout kernels.Tensor, x kernels.StateSpaceOperands,
	l *kernels.Layout, r kernels.Recurrence) {
	op := chunkedGrad{chunked: chunked{d: d, r: r, q: x.C, k: x.B, v: x.X, g: x.G, dt: x.DT, skip: x.Skip},
		dout: dout, dq: dx.C, dk: dx.B, dv: dx.X, dg: dx.G, ddt: dx.DT, dskip: dx.Skip}
	op.backward(l)
}

// moreCuts is how many cuts backward has memory for beyond those of one sequence of all rows: as many as short
// sequences end with, so that packs of 128 rows each and longer are one part.
const moreCuts = 16

// backward takes the workspace of one sequence, whatever the sequences are: short ones have more cuts, and come in
// parts.
func (op *chunkedGrad) backward(l *kernels.Layout) {
	d, r, blocks := op.d, op.r, rows.StageBlocks(op.d.Context, l.Segments)
	n := op.v.Rows
	cuts := driver.Blocks(n, chunksChunk)
	cuts += min(cuts/4, moreCuts)
	states, values, keys := cuts*r.Heads*r.KeyDim*r.ValueDim, n*r.Heads*r.ValueDim, n*r.KeyHeads*r.KeyDim
	at := op.prepare(nil, l, cuts, states, states, values, values, values, keys, n*r.KeyHeads*r.ValueDim, keys, keys,
		n*r.Heads, r.Heads*blocks.Count)
	op.chunks()
	for _, p := range op.parts {
		op.gradients(p, at)
	}
	dq, dk, dskip, sums := at[7], at[8], at[9], at[10]
	op.finish(op.dq, dq, op.q, queryScale(r.KeyDim))
	op.finish(op.dk, dk, op.k, 1)
	if !op.dskip.IsNil() {
		rows.AddRows(d.Context, op.dskip, dskip, sums, blocks)
	}
}

// gradients computes those of a part, with the workspace of all.
func (op *chunkedGrad) gradients(p chunkedPart, at []cu.DevicePtr) {
	d, r := op.d, op.r
	states, grads, n, reads, x, u, qs, dq, dk, dskip := at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8],
		at[9]
	op.walk(p, kernels.Tensor{}, states, n, reads)
	scan := op.scan(p, 2*chunksChunk)
	if scan.teams {
		launchTeamUnroll(d.Context, scan.variant, scan.grid, scan.threads, scan.bytes, &op.heads, grads, x, op.queries,
			op.keys, op.dout, op.c, op.factor, op.pairs, op.ms, p.sequencesAt, p.cutsAt, op.dout.Stride)
	} else {
		launchChunkUnroll(d.Context, scan.variant, scan.grid, scan.threads, scan.bytes, &op.heads, grads, x,
			op.queries, op.keys, op.dout, op.c, op.factor, op.pairs, op.ms, p.sequencesAt, p.cutsAt, op.dout.Stride)
	}
	launchChunkGrads(d.Context, driver.Suffix(op.v), [3]int{p.cuts, r.KeyHeads, 1}, chunksThreads, pairsBytes,
		&op.heads, op.queries, op.keys, op.c, op.factor, states, grads, n, reads, x, u, qs, dq, dk, op.dv, op.db, op.dg,
		op.ddt, dskip, op.dv.Stride, op.db.Stride, op.dg.Stride, op.ddt.Stride, op.dout, op.v, op.skip, p.cutsAt,
		op.dout.Stride, op.v.Stride)
}

// finish rounds gradients of queries or keys, through their norm where they have one.
func (op *chunkedGrad) finish(to kernels.Tensor, from cu.DevicePtr, x kernels.Tensor, scale float32) {
	heads := op.r.KeyHeads
	launchChunkKeys(op.d.Context, driver.Suffix(x), driver.WarpGrid(op.rows*heads), driver.WarpThreads, 0, to, from, x,
		op.rows, heads, op.r.KeyDim, to.Stride, x.Stride, driver.Flag(op.delta), scale)
}
