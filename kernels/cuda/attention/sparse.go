//go:build cuda

package attention

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// SparseAttend is Attention to the keys in indices int32 [T, TopK]: q [T, Heads*HeadDim], out [T, Heads*ValueDim], lse
// F32 [T, Heads]. The kernels are those of absorbed latent attention: absorbed.cu and absorbed_wide.cu.
func (d *Ops) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor, l *kernels.Layout,
	a kernels.Attn) {
	mustAttendTo(kv, a)
	mustAttendSparsely(a, indices, q, out)
	d.attendAbsorbed(out, lse, q, kv, indices, l, a)
}

// SparseAttendBackward is AttentionBackward with lists of keys, for unpaged layouts; dq, dk, dv are written. The
// kernels are absorbed_backward.cu, absorbed_dq_wide.cu, and absorbed_dkv_wide.cu or absorbed_listed.cu.
func (d *Ops) SparseAttendBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	mustAttendSparsely(a, indices, q, kv.K, kv.V, out, dout, dq, dk, dv)
	d.gradientsAbsorbed(dq, dk, dv, dout, out, lse, q, kv, indices, l, a)
}

// AttentionDelta writes the sums of dout*out of each head.
func (d *Ops) AttentionDelta(delta, dout, out kernels.Tensor, a kernels.Attn) {
	driver.MustBF16(dout, out)
	mustFollow(delta)
	launchAttentionDelta(d.Context, driver.WarpGrid(delta.Rows*a.Heads), driver.WarpThreads, 0, delta, dout, out,
		delta.Rows, a.Heads, a.Values(), dout.Stride, out.Stride)
}

// AttentionQueryGrad is dq of AttentionBackward of a part of the rows, by the same kernels.
func (d *Ops) AttentionQueryGrad(dq, dout, delta, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	mustDivide(a, q, kv.K, kv.V, dout, dq)
	mustFollow(delta)
	g := &absorbedGradients{d: d, dq: dq, dout: dout, lse: lse, q: q, l: l, a: a, part: allKeys(l),
		delta: driver.AtType(delta, kernels.F32)}
	g.compute(kernels.Tensor{}, kv, indices, l)
}

// AttentionKeyGrad continues dk and dv of AttentionBackward of a part of the keys by some queries, by the same
// kernels.
func (d *Ops) AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	l *kernels.Layout, a kernels.Attn, part kernels.KeyPart) {
	mustDivide(a, q, kv.K, kv.V, dout, dk, dv)
	mustFollow(delta, sums)
	g := &absorbedGradients{d: d, dk: dk, dv: dv, dout: dout, lse: lse, q: q, l: l, a: a, part: part, chains: sums,
		delta: driver.AtType(delta, kernels.F32)}
	g.compute(kernels.Tensor{}, kv, indices, l.Part([2]int{part.From, part.To}))
}

// mustDivide panics where the gradients of parts of the rows have no kernels: only those of absorbed heads have.
func mustDivide(a kernels.Attn, ts ...kernels.Tensor) {
	mustAttend(a, ts...)
	if !Absorbed(a) {
		panic(kernels.Fault{Err: fmt.Errorf("gradients of parts of a sequence on the GPU support absorbed heads of "+
			"%v, not %+v", headDimsAbsorbed, a)})
	}
}

// mustFollow panics where rows do not follow one another.
func mustFollow(ts ...kernels.Tensor) {
	for _, t := range ts {
		if t.Stride != t.Cols {
			panic(fmt.Sprintf("attention: the rows of %s do not follow one another", t))
		}
	}
}

// SupportsSparse tells whether the kernels are written for a shape: keys that an indexer chooses are read once for all
// heads, as the latent.
func SupportsSparse(a kernels.Attn) bool { return Absorbed(a) && a.Window == 0 }

// mustAttendSparsely panics with what the kernels cannot do.
func mustAttendSparsely(a kernels.Attn, indices kernels.Tensor, ts ...kernels.Tensor) {
	mustAttend(a, ts...)
	if !SupportsSparse(a) || indices.DType != kernels.I32 {
		panic(kernels.Fault{Err: fmt.Errorf("sparse attention on the GPU supports absorbed heads of %v, not "+
			"%+v on %s", headDimsAbsorbed, a, indices)})
	}
}
