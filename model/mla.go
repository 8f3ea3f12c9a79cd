package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// MLA is multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): queries, keys and values come from small latents,
// and one rotary part of the keys is shared by all heads.
//
//	cq, c, kr = x Wqa, x Wkva;  q = norm(cq) Wqb  (without a query latent q = x Wq);  k, v = norm(c) Wkvb
//	q, k of a head = (nope, rope), with rope(kr) in the key of every head;  o = softmax(scale q k^T) v;  y = o Wo
//
// The definition says whether keys and values are expanded from the latent ([MLA.expand]) or queries are brought to it
// ([MLA.absorb]). It is the same in training, prefill and decoding, since the two round in different places. The
// cache holds what attention reads: keys and values of all heads, or one latent and rotary part for all heads.
type MLA struct {
	Down    *Linear       // [cq + ck + r, H]: the latents and the rotary part of the keys
	QNorm   *Norm         // [cq]; nil: no query latent
	Q       *Linear       // [Heads*(n+r), cq or H]
	KVNorm  *Norm         // [ck]
	KV      *Linear       // [Heads*(n+v), ck]: the keys of all heads, then the values
	O       *Linear       // [H, Heads*v]
	Shape   kernels.Attn  // of what attention reads
	Rope    *kernels.Rope // of queries: the last r columns of a head
	NopeDim int           // n
	Form    kernels.LatentForm
	Block   int

	Index      *Indexer // selects keys; nil: none of its own
	SelectedBy int      // the block whose indexer selects the keys where Sparse
	Sparse     bool
	TopK       int // keys that it selects

	ops *operations
}

// MLASaved is what Backward needs of a Forward.
type MLASaved struct {
	layer                  *MLA
	DownIn, QIn, KVIn, OIn LinearSaved
	QNorm, KVNorm          NormSaved
	// of attention: [T, Heads*(n+r)] twice and [T, Heads*v] twice, or absorbed [T, Heads*(ck+r)], [T, ck+r], [T, ck],
	// [T, Heads*ck]
	Q, K, V, Out kernels.Tensor
	LSE          kernels.Tensor // [T, Heads]
	Absorbed     absorbedSaved
	Selected     kernels.Tensor // of sparse attention; nil: all keys
	Index        IndexerSaved   // of an indexer that learns
}

// keyRope is the rotation of the r columns that the keys of all heads share.
func (a *MLA) keyRope() *kernels.Rope {
	k := *a.Rope
	k.HeadDim, k.First = 2*k.Cos.Cols, 0
	return &k
}

func (a *MLA) split(down kernels.Tensor) (cq, c, kr kernels.Tensor) {
	r := 2 * a.Rope.Cos.Cols
	ck := a.KVNorm.W.W.Cols
	return down.ColRange(0, down.Cols-ck-r), down.ColRange(down.Cols-ck-r, down.Cols-r), down.ColRange(down.Cols-r,
		down.Cols)
}

// Forward is [T, H] from x [T, H]; keys and values go to the batch's cache where it has one.
func (a *MLA) Forward(r *parallel.Rank, x kernels.Tensor, b *Batch, k *Keep) (kernels.Tensor, LayerSaved) {
	s := &MLASaved{layer: a}
	cq, c, kr := a.split(a.Down.forward(r, x, nil, k, SaveProjections, &s.DownIn))
	u := x
	if a.QNorm != nil {
		u = a.QNorm.Forward(r, cq, &s.QNorm)
	}
	s.Q = a.Q.forward(r, u, nil, k, SaveProjections, &s.QIn)
	if !k.done(SaveProjections) { // in place: what is kept has been rotated
		applyRope(r, s.Q, s.Q, a.Rope, b)
	}
	if a.Form == kernels.LatentAbsorbed {
		a.absorb(r, c, kr, b, s)
	} else {
		a.expand(r, c, kr, b, k, s)
	}
	read := a.ops.readBy(r, kernels.KV{K: s.K, V: s.V}, a.Shape, a.Block, b)
	a.selectKeys(r, u, x, b, k, s)
	var done bool
	s.Out, _ = k.tensor(r, SaveAttention, x.DType, x.Rows, a.Shape.Heads*a.Shape.Values())
	if s.LSE, done = k.tensor(r, SaveAttention, kernels.F32, x.Rows, a.Shape.Heads); !done {
		a.attend(r, read, b, s)
	}
	o := s.Out
	if a.Form == kernels.LatentAbsorbed {
		o = a.values(r, k, s)
	}
	y := a.O.forward(r, o, nil, k, layerOutput, &s.OIn)
	if !k.saves() {
		return y, nil
	}
	return y, s
}

// selectKeys runs the layer's indexer, if it has one. A second Forward finds the keys selected and runs the indexer
// only for what its Backward needs.
func (a *MLA) selectKeys(r *parallel.Rank, u, x kernels.Tensor, b *Batch, k *Keep, s *MLASaved) {
	if a.Sparse {
		s.Selected = b.Selected[a.SelectedBy]
	}
	if a.Index == nil {
		return
	}
	selected := b.Selected[a.Block]
	if k != nil && k.again {
		selected = kernels.Tensor{}
	}
	var learns *IndexerSaved
	if k.saves() && b.IndexerLoss != nil {
		learns = &s.Index
	}
	a.Index.Forward(r, selected, u, x, a.cache(b).IndexKeys, b, learns)
}

// attend writes attention's output and log-sums.
func (a *MLA) attend(r *parallel.Rank, read kernels.KV, b *Batch, s *MLASaved) {
	defer r.Stack.Release(r.Stack.Mark())
	rows := a.dividesRows(b)
	if rows {
		read = b.gatherKV(r, read)
	}
	switch {
	case !s.Selected.IsNil():
		a.ops.sparse.SparseAttend(s.Out, s.LSE, s.Q, read, s.Selected, b.Layout, a.Shape)
	case rows:
		r.Dev.Attention(s.Out, s.LSE, s.Q, read, b.Layout, a.Shape)
	default:
		attend(r, s.Out, s.LSE, s.Q, read, a.Shape, b)
	}
}

// dividesRows tells whether several ranks have rows of the batch's sequences, and each computes its own.
func (a *MLA) dividesRows(b *Batch) bool {
	n, _ := a.contextHeads()
	return b.Context != nil && n == 0
}

// attendBackward writes the gradients of what attention reads.
func (a *MLA) attendBackward(r *parallel.Rank, dq, dk, dv, dout kernels.Tensor, b *Batch, s *MLASaved) {
	defer r.Stack.Release(r.Stack.Mark())
	d, x := qkv{dq, dk, dv}, qkv{s.Q, s.K, s.V}
	switch {
	case a.dividesRows(b):
		b.rowsBackward(r, a.ops.divided, d, dout, s.Out, s.LSE, x, s.Selected, a.Shape)
	case s.Selected.IsNil():
		attendBackward(r, d, dout, s.Out, s.LSE, x, headsAgain(r, x, s.Out, s.LSE, b), a.Shape, b)
	default:
		a.ops.sparse.SparseAttendBackward(dq, dk, dv, dout, s.Out, s.LSE, s.Q, kernels.KV{K: s.K, V: s.V}, s.Selected,
			b.Layout, a.Shape)
	}
}

// Backward is dx from dy. The loss of indexers has no part in dx.
func (s *MLASaved) Backward(r *parallel.Rank, dy kernels.Tensor, b *Batch) kernels.Tensor {
	a := s.layer
	if b.IndexerLoss != nil {
		s.trainIndexer(r, b)
	}
	do := a.O.Backward(r, dy, nil, b.Segments, &s.OIn)
	ddown := r.Stack.New(dy.DType, dy.Rows, a.Down.W.W.Rows)
	dcq, dc, dkr := a.split(ddown)
	var dq, dnormed kernels.Tensor
	if a.Form == kernels.LatentAbsorbed {
		dq, dnormed = a.absorbBackward(r, do, dkr, b, s)
	} else {
		dq, dnormed = a.expandBackward(r, do, dkr, b, s)
	}
	applyRopeBackward(r, dkr, a.keyRope(), b)
	applyRopeBackward(r, dq, a.Rope, b)
	r.Dev.Zero(dc)
	a.KVNorm.Backward(r, dc, dnormed, b, &s.KVNorm)
	du := a.Q.Backward(r, dq, nil, b.Segments, &s.QIn)
	if a.QNorm == nil {
		dx := a.Down.Backward(r, ddown, nil, b.Segments, &s.DownIn)
		r.Dev.Add(dx, dx, du)
		return dx
	}
	r.Dev.Zero(dcq)
	a.QNorm.Backward(r, dcq, du, b, &s.QNorm)
	return a.Down.Backward(r, ddown, nil, b.Segments, &s.DownIn)
}

// Linears are the projections to the latents, from them, and that of the output.
func (a *MLA) Linears() []*Linear { return []*Linear{a.Down, a.Q, a.KV, a.O} }

// work is that of the projections, of attention and of the indexer.
func (a *MLA) work(e Extent) (w work) {
	rows, heads, most := float64(e.Rows), a.Shape.Heads, 0
	w.product(SaveProjections, a.Down, e.Rows)
	w.product(SaveProjections, a.Q, e.Rows)
	w.output = a.O.flops(e.Rows)
	if a.Form == kernels.LatentExpanded {
		w.product(SaveProjections, a.KV, e.Rows)
	} else { // the weights of keys before attention, those of values behind it
		w.again = float64(2 * rows * float64(heads*a.NopeDim) * float64(a.KV.W.W.Cols))
		values := a.KV.flops(e.Rows) - w.again
		if a.readsValues() {
			w.again += values
		} else {
			w.output += values
		}
	}
	if a.Index != nil {
		w.once = a.Index.flops(e)
	}
	if a.Sparse {
		most = a.TopK
	}
	w.result(SaveAttention, e.attention(a.Shape, most), shape{a.Q.W.W.DType, e.Rows, heads * a.Shape.Values()},
		shape{kernels.F32, e.Rows, heads})
	return w
}

// Idle is 0.
func (a *MLA) Idle() int { return 0 }

// contextHeads is 0 where one key is for all heads, or an indexer selects keys.
func (a *MLA) contextHeads() (n int, key string) {
	if a.Form == kernels.LatentAbsorbed || a.Sparse {
		return 0, ""
	}
	return a.Shape.Heads, "num_attention_heads"
}

// cache is the layer's part of the batch's cache.
func (a *MLA) cache(b *Batch) LayerCache {
	if b.Cache == nil {
		return LayerCache{}
	}
	return b.Cache.Layers[a.Block]
}

// NewCache is pages of keys and values, and of the indexer's keys.
func (a *MLA) NewCache(mem *kernels.Arena, s CacheSize) LayerCache {
	d := a.O.W.W.DType
	c := LayerCache{KV: a.ops.newKV(mem, d, a.Shape, a.Form == kernels.LatentAbsorbed, s)}
	if a.Index != nil {
		c.IndexKeys = kernels.KV{K: mem.New(d, s.Pages*s.PageRows, a.Index.Shape.Dim), V: mem.New(d, s.Pages*s.PageRows,
			0),
			PageRows: s.PageRows}
	}
	return c
}

// PageBytes is the memory of a page of so many rows.
func (a *MLA) PageBytes(rows int) int {
	d := a.O.W.W.DType
	n := a.ops.kvBytes(d, a.Shape, a.Form == kernels.LatentAbsorbed, rows)
	if a.Index != nil {
		n += rows * a.Index.Shape.Dim * d.Size()
	}
	return n
}

// SlotBytes is 0: a sequence has pages alone.
func (a *MLA) SlotBytes() int { return 0 }

// expand makes the keys and values of every head, [T, Heads*(n+r)] and [T, Heads*v], from latents c [T, ck] and the
// rotary part of the keys, kr [T, r].
func (a *MLA) expand(r *parallel.Rank, c, kr kernels.Tensor, b *Batch, k *Keep, s *MLASaved) {
	if !k.done(SaveProjections) {
		applyRope(r, kr, kr, a.keyRope(), b)
	}
	c = a.KVNorm.Forward(r, c, &s.KVNorm)
	kv := a.KV.forward(r, c, nil, k, SaveProjections, &s.KVIn)
	own := kv.ColRange(0, a.Shape.Heads*a.NopeDim)
	s.K, s.V = r.Stack.New(c.DType, c.Rows, s.Q.Cols), kv.ColRange(own.Cols, kv.Cols)
	r.Dev.JoinHeads(s.K, own, kr)
}

// expandBackward is dq [T, Heads*(n+r)] and dc [T, ck] from do [T, Heads*v]; it writes dkr [T, r].
func (a *MLA) expandBackward(r *parallel.Rank, do, dkr kernels.Tensor, b *Batch, s *MLASaved) (dq, dc kernels.Tensor) {
	dq = r.Stack.New(do.DType, do.Rows, s.Q.Cols)
	dk, dkv := r.Stack.New(do.DType, do.Rows, s.K.Cols), r.Stack.New(do.DType, do.Rows, a.KV.W.W.Rows)
	own := a.Shape.Heads * a.NopeDim
	a.attendBackward(r, dq, dk, dkv.ColRange(own, dkv.Cols), do, b, s)
	r.Dev.JoinHeadsBackward(dkv.ColRange(0, own), dkr, dk)
	return dq, a.KV.Backward(r, dkv, nil, b.Segments, &s.KVIn)
}

// absorbedSaved is what Backward needs of absorbed attention.
type absorbedSaved struct {
	Q       kernels.Tensor // [T, Heads*(n+r)]: queries before a head's weight of keys
	O       kernels.Tensor // [T, Heads*v]: what a head's weight of values makes of attention's output
	KeyDown HeadSaved
	ValueUp HeadSaved
}

// keyHeads and valueHeads are the weights of each head's keys and values.
func (a *MLA) keyHeads() *HeadLinear {
	return &HeadLinear{of: a.KV, Heads: a.Shape.Heads, Rows: a.NopeDim}
}

func (a *MLA) valueHeads() *HeadLinear {
	own := a.Shape.Heads * a.NopeDim
	return &HeadLinear{of: a.KV, from: own, Heads: a.Shape.Heads, Rows: (a.KV.W.W.Rows - own) / a.Shape.Heads}
}

// heads is t [T, Heads*n] as rows of tokens' heads, [T*Heads, n].
func (a *MLA) heads(t kernels.Tensor) kernels.Tensor {
	return t.Reshape(t.Rows*a.Shape.Heads, t.Cols/a.Shape.Heads)
}

// absorb makes attention's queries: the first columns of a head are multiplied by the weight of its keys, the rotary
// ones are copied. Keys are (norm(c), rope(kr)), values norm(c): one row for all heads, from latents c [T, ck] and the
// rotary part of the keys, kr [T, r].
func (a *MLA) absorb(r *parallel.Rank, c, kr kernels.Tensor, b *Batch, s *MLASaved) {
	q := s.Q
	s.Absorbed.Q = q
	s.K = r.Stack.New(c.DType, c.Rows, c.Cols+kr.Cols)
	s.V = s.K.ColRange(0, c.Cols)
	a.KVNorm.write(r, s.V, c, &s.KVNorm)
	applyRope(r, s.K.ColRange(c.Cols, s.K.Cols), kr, a.keyRope(), b)
	s.Q = r.Stack.New(q.DType, q.Rows, a.Shape.Heads*s.K.Cols)
	from, to := a.heads(q), a.heads(s.Q)
	a.keyHeads().down(r, to.ColRange(0, c.Cols), from.ColRange(0, a.NopeDim), &s.Absorbed.KeyDown)
	r.Dev.Copy(to.ColRange(c.Cols, to.Cols), from.ColRange(a.NopeDim, from.Cols))
}

// readsValues tells whether a gradient reads o or what an adapter makes of it.
func (a *MLA) readsValues() bool { return a.O.readsInput() || a.KV.readsInput() }

// values is o [T, Heads*v] from attention's output over latents; the zero Tensor where nothing reads it.
func (a *MLA) values(r *parallel.Rank, k *Keep, s *MLASaved) kernels.Tensor {
	if k.done(layerOutput) && !a.readsValues() {
		return kernels.Tensor{}
	}
	p := a.valueHeads()
	s.Absorbed.O = r.Stack.New(s.Out.DType, s.Out.Rows, p.Heads*p.Rows)
	p.up(r, a.heads(s.Absorbed.O), a.heads(s.Out), &s.Absorbed.ValueUp)
	return s.Absorbed.O
}

// absorbBackward is dq [T, Heads*(n+r)] and dc [T, ck] from do [T, Heads*v]; it writes dkr [T, r].
func (a *MLA) absorbBackward(r *parallel.Rank, do, dkr kernels.Tensor, b *Batch, s *MLASaved) (dq, dc kernels.Tensor) {
	var valueDown, keyUp HeadSaved
	dout, values := r.Stack.New(do.DType, do.Rows, s.Out.Cols), a.valueHeads()
	values.down(r, a.heads(dout), a.heads(do), &valueDown)
	values.weightGrads(r, a.heads(do), a.heads(s.Out), &s.Absorbed.ValueUp, b)

	dabsorbed, dk, dv := r.Stack.New(do.DType, do.Rows, s.Q.Cols), r.Stack.New(do.DType, do.Rows, s.K.Cols),
		r.Stack.New(do.DType, do.Rows, s.V.Cols)
	a.attendBackward(r, dabsorbed, dk, dv, dout, b, s)
	r.Dev.Add(dv, dv, dk.ColRange(0, dv.Cols))
	r.Dev.Copy(dkr, dk.ColRange(dv.Cols, dk.Cols))

	q := a.heads(s.Absorbed.Q).ColRange(0, a.NopeDim)
	if dq = do; do.Cols != s.Absorbed.Q.Cols { // whose place it takes where it has as many columns
		dq = r.Stack.New(do.DType, do.Rows, s.Absorbed.Q.Cols)
	}
	from, to, keys := a.heads(dabsorbed), a.heads(dq), a.keyHeads()
	latent := from.ColRange(0, dv.Cols)
	keys.up(r, to.ColRange(0, a.NopeDim), latent, &keyUp)
	keys.weightGrads(r, q, latent, &keyUp, b)
	sharedGrads(r, b, sharedGrad{values, valueDown.U, a.heads(s.Out)}, sharedGrad{keys, s.Absorbed.KeyDown.U, latent})
	r.Dev.Copy(to.ColRange(a.NopeDim, to.Cols), from.ColRange(dv.Cols, from.Cols))
	return dq, dv
}
