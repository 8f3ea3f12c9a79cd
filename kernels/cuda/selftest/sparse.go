//go:build cuda

package selftest

import (
	"fmt"
	"math/rand/v2"

	"lockstep/kernels"
	"lockstep/kernels/cuda/attention"
)

// CheckSparseAttention tries the choice of keys and attention to them, forward and backward, once.
func (d *Trials) CheckSparseAttention(a kernels.Attn, x kernels.Index) error {
	return d.trySparsely("sparse attention", attention.SupportsIndex(x), a, x, trySparse)
}

// CheckIndexerLoss tries what an indexer learns from attention, on lists and on all keys, once.
func (d *Trials) CheckIndexerLoss(a kernels.Attn, x kernels.Index) error {
	return d.trySparsely("what an indexer learns of attention", attention.SupportsIndexerLoss(x), a, x, tryIndex)
}

// trySparsely tries a layer once, unless it is not written for the indexer or its attention, which reads the latent.
func (d *Trials) trySparsely(layer string, written bool, a kernels.Attn, x kernels.Index,
	try func(d *layerTrial, a kernels.Attn, x kernels.Index) kernels.Tensor) error {
	if d.c.Def.Latent == kernels.LatentExpanded && !attention.Absorbed(a) {
		return fmt.Errorf(`reads keys that an indexer chooses from the latent alone: this model needs `+
			`definition.latent = "%s" or "auto", not "%s"`, kernels.LatentAbsorbed, d.c.Def.Latent)
	}
	what := fmt.Sprintf("%s of %d heads on %d, keys of %d columns and values of %d, lists of %d keys by %d heads of %d",
		layer, a.Heads, a.KVHeads, a.HeadDim, a.Values(),
		x.TopK, x.Heads, x.Dim)
	if !attention.SupportsSparse(a) || !written {
		return fmt.Errorf("does not compute %s yet: this model needs another one", what)
	}
	a.Heads, a.KVHeads, x.TopK = min(a.Heads/a.KVHeads, trialHeads), 1, min(x.TopK, layerTrialRows/2)
	return d.tryOnce(what, func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		t := newLayerTrial(d, mem, r)
		return try(&t, a, x)
	})
}

// trySparse is a layer of sparse attention: the norm of the indexer's keys, the choice, attention and its gradient.
func trySparse(t *layerTrial, a kernels.Attn, x kernels.Index) kernels.Tensor {
	d := t.d.(kernels.SparseAttention)
	q, k, dout := t.rows(a.Heads*a.HeadDim), t.rows(a.HeadDim), t.rows(a.Heads*a.Values())
	v := k.ColRange(0, a.Values())
	keys, indices := t.activation(x.Dim), t.mem.New(kernels.I32, layerTrialRows, x.TopK)
	d.LayerNorm(keys, t.rows(x.Dim), t.random(kernels.BF16, 1, x.Dim), t.random(kernels.BF16, 1, x.Dim), 1e-6)
	d.SelectKeys(indices, t.rows(x.Heads*x.Dim), t.random(kernels.F32, layerTrialRows, x.Heads), kernels.KV{K: keys},
		t.l,
		x)
	out, lse, kv := t.activation(a.Heads*a.Values()), t.perHead(a.Heads), kernels.KV{K: k, V: v}
	d.SparseAttend(out, lse, q, kv, indices, t.l, a)
	d.SparseAttendBackward(t.activation(a.Heads*a.HeadDim), t.activation(a.HeadDim), t.activation(a.Values()), dout,
		out, lse, q, kv, indices, t.l, a)
	return t.all()
}

// tryIndex is what an indexer learns from a layer of attention, the gradient of the norm of its keys with it.
func tryIndex(t *layerTrial, a kernels.Attn, x kernels.Index) kernels.Tensor {
	d := t.d.(kernels.IndexerLoss)
	q, k, lse := t.rows(a.Heads*a.HeadDim), t.rows(a.HeadDim), t.mem.New(kernels.F32, layerTrialRows, a.Heads)
	t.d.Attention(t.rows(a.Heads*a.Values()), lse, q, kernels.KV{K: k, V: k.ColRange(0, a.Values())}, t.l, a)
	queries, keys, weights := t.rows(x.Heads*x.Dim), t.rows(x.Dim), t.random(kernels.F32, layerTrialRows, x.Heads)
	lists := t.mem.New(kernels.I32, layerTrialRows, x.TopK)
	d.SelectKeys(lists, queries, weights, kernels.KV{K: keys}, t.l, x)
	for _, indices := range []kernels.Tensor{lists, {}} {
		target, dk := t.result(kernels.F32, layerTrialRows, layerTrialRows), t.activation(x.Dim)
		d.IndexTarget(target, q, k, lse, indices, t.l, a)
		d.IndexLoss(t.result(kernels.F32, 1, layerTrialRows), target, queries, weights, keys, indices, t.l, x, 0.25)
		d.IndexBackward(t.activation(x.Heads*x.Dim), dk, t.perHead(x.Heads), target, queries, weights, keys, indices,
			t.l,
			x)
		d.LayerNormBackward(t.activation(x.Dim), t.result(kernels.F32, 1, x.Dim), t.result(kernels.F32, 1, x.Dim), dk,
			keys, t.random(kernels.BF16, 1, x.Dim), 1e-6, t.l.Packs)
	}
	return t.all()
}
