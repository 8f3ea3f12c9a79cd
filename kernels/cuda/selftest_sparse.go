//go:build cuda

package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"lockstep/kernels"
)

// AttendsSparsely tries the choice of keys and attention to them, forward and backward, once.
func (d *Device) AttendsSparsely(a kernels.Attn, x kernels.Index) error {
	what := fmt.Sprintf("sparse attention of %d heads on %d, keys of %d columns and values of %d, lists of %d keys by %d heads of %d", a.Heads, a.KVHeads, a.HeadDim, a.Values(),
		x.TopK, x.Heads, x.Dim)
	if !attendsSparsely(a) || !slices.Contains(indexDims, x.Dim) {
		return fmt.Errorf("does not compute %s yet: this model needs another one", what)
	}
	a.Heads, a.KVHeads, x.TopK = a.Heads/a.KVHeads, 1, min(x.TopK, layerTrialRows/2)
	return d.tryOnce(what, func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		t := newLayerTrial(d, mem, r)
		return trySparse(d.(kernels.SparseAttention), &t, a, x)
	})
}

// trySparse is a layer of sparse attention: the norm of the indexer's keys, the choice, attention and its gradient.
func trySparse(d kernels.SparseAttention, t *layerTrial, a kernels.Attn, x kernels.Index) kernels.Tensor {
	q, k, v, dout := t.rows(a.Heads*a.HeadDim), t.rows(a.HeadDim), t.rows(a.Values()), t.rows(a.Heads*a.Values())
	keys, picks := t.activation(x.Dim), t.mem.New(kernels.I32, layerTrialRows, x.TopK)
	d.LayerNorm(keys, t.rows(x.Dim), t.random(kernels.BF16, 1, x.Dim), t.random(kernels.BF16, 1, x.Dim), 1e-6)
	d.SelectKeys(picks, t.rows(x.Heads*x.Dim), t.random(kernels.F32, layerTrialRows, x.Heads), kernels.KV{K: keys}, t.l, x)
	out, lse, kv := t.activation(a.Heads*a.Values()), t.perHead(a.Heads), kernels.KV{K: k, V: v}
	d.SparseAttend(out, lse, q, kv, picks, t.l, a)
	d.SparseAttendBackward(t.activation(a.Heads*a.HeadDim), t.activation(a.HeadDim), t.activation(a.Values()), dout, out, lse, q, kv, picks, t.l, a)
	return t.all()
}
