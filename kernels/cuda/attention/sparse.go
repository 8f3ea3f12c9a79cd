//go:build cuda

package attention

import (
	"fmt"

	"lockstep/kernels"
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
// kernels are absorbed_backward.cu, absorbed_dq_wide.cu and absorbed_dkv_wide.cu.
func (d *Ops) SparseAttendBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	mustAttendSparsely(a, indices, q, kv.K, kv.V, out, dout, dq, dk, dv)
	d.gradientsAbsorbed(dq, dk, dv, dout, out, lse, q, kv, indices, l, a)
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
