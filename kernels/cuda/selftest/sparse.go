//go:build cuda

package selftest

import (
	"fmt"
	"math/rand/v2"

	"lockstep/kernels"
	"lockstep/kernels/cuda/attention"
)

// CheckSparseAttention runs the selection of keys and attention to them, forward and backward, once.
func (d *Checks) CheckSparseAttention(a kernels.Attn, x kernels.Index) error {
	return d.checkSparse("sparse attention", attention.SupportsIndex(x), a, x, runSparseAttention)
}

// CheckIndexerLoss runs the loss of an indexer and its gradient, on selected keys and on all keys, once.
func (d *Checks) CheckIndexerLoss(a kernels.Attn, x kernels.Index) error {
	return d.checkSparse("the indexer loss of attention", attention.SupportsIndexerLoss(x), a, x, runIndexerLoss)
}

// checkSparse runs a layer once, unless it does not support the indexer or its attention, which reads the latent.
func (d *Checks) checkSparse(layer string, supported bool, a kernels.Attn, x kernels.Index,
	run func(d *layerCheck, a kernels.Attn, x kernels.Index) kernels.Tensor) error {
	if d.c.Def.Latent == kernels.LatentExpanded && !attention.Absorbed(a) {
		return fmt.Errorf(`reads keys that an indexer chooses from the latent alone: this model needs `+
			`definition.latent = "%s" or "auto", not "%s"`, kernels.LatentAbsorbed, d.c.Def.Latent)
	}
	what := fmt.Sprintf("%s of %d heads on %d, keys of %d columns and values of %d, lists of %d keys by %d heads of %d",
		layer, a.Heads, a.KVHeads, a.HeadDim, a.Values(),
		x.TopK, x.Heads, x.Dim)
	if !attention.SupportsSparse(a) || !supported {
		return fmt.Errorf("does not compute %s yet: this model needs another one", what)
	}
	a.Heads, a.KVHeads, x.TopK = min(a.Heads/a.KVHeads, checkHeads), 1, min(x.TopK, layerRows/2)
	return d.checkOnce(what, func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		t := newLayerCheck(d, mem, r)
		return run(&t, a, x)
	})
}

// runSparseAttention is a layer of sparse attention: the norm of the indexer's keys, the selection, attention and its
// gradient.
func runSparseAttention(t *layerCheck, a kernels.Attn, x kernels.Index) kernels.Tensor {
	d := t.d.(kernels.SparseAttention)
	q, k, dout := t.rows(a.Heads*a.HeadDim), t.rows(a.HeadDim), t.rows(a.Heads*a.Values())
	v := k.ColRange(0, a.Values())
	keys, indices := t.activation(x.Dim), t.mem.New(kernels.I32, layerRows, x.TopK)
	d.LayerNorm(keys, t.rows(x.Dim), t.random(kernels.BF16, 1, x.Dim), t.random(kernels.BF16, 1, x.Dim), 1e-6)
	d.SelectKeys(indices, t.rows(x.Heads*x.Dim), t.random(kernels.F32, layerRows, x.Heads), kernels.KV{K: keys},
		t.l,
		x)
	out, lse, kv := t.activation(a.Heads*a.Values()), t.perHead(a.Heads), kernels.KV{K: k, V: v}
	d.SparseAttend(out, lse, q, kv, indices, t.l, a)
	d.SparseAttendBackward(t.activation(a.Heads*a.HeadDim), t.activation(a.HeadDim), t.activation(a.Values()), dout,
		out, lse, q, kv, indices, t.l, a)
	return t.all()
}

// runIndexerLoss is the indexer loss of a layer of attention with its gradient, also through the norm of the indexer's
// keys.
func runIndexerLoss(t *layerCheck, a kernels.Attn, x kernels.Index) kernels.Tensor {
	d := t.d.(kernels.IndexerLoss)
	q, k, lse := t.rows(a.Heads*a.HeadDim), t.rows(a.HeadDim), t.mem.New(kernels.F32, layerRows, a.Heads)
	t.d.Attention(t.rows(a.Heads*a.Values()), lse, q, kernels.KV{K: k, V: k.ColRange(0, a.Values())}, t.l, a)
	queries, keys, weights := t.rows(x.Heads*x.Dim), t.rows(x.Dim), t.random(kernels.F32, layerRows, x.Heads)
	lists := t.mem.New(kernels.I32, layerRows, x.TopK)
	d.SelectKeys(lists, queries, weights, kernels.KV{K: keys}, t.l, x)
	for _, indices := range []kernels.Tensor{lists, {}} {
		target, dk := t.result(kernels.F32, layerRows, layerRows), t.activation(x.Dim)
		d.IndexTarget(target, q, k, lse, indices, t.l, a)
		d.IndexLoss(t.result(kernels.F32, 1, layerRows), target, queries, weights, keys, indices, t.l, x)
		d.IndexBackward(t.activation(x.Heads*x.Dim), dk, t.perHead(x.Heads), target, queries, weights, keys, indices,
			t.l,
			x)
		d.LayerNormBackward(t.activation(x.Dim), t.result(kernels.F32, 1, x.Dim), t.result(kernels.F32, 1, x.Dim), dk,
			keys, t.random(kernels.BF16, 1, x.Dim), 1e-6, t.l.Segments)
	}
	return t.all()
}
