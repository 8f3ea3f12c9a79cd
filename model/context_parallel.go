package model

import (
	"fmt"
	"slices"
	"strings"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Context parallel. Ranks have whole segments of the rows of a pack, in their order. What computes a row by itself
// computes the rank's own rows, and so gradients of weights are sums of the rank's own segments. A [Mixer] looks at
// other rows of the sequence.
//
// By heads (DeepSpeed-Ulysses: Jacobs et al., arXiv 2309.14509): none of the mixer's heads looks at another. An
// all-to-all brings it all rows of some heads, and another its results back to the rows' ranks. Backward does the same
// with gradients. What a mixer sums over rows of its own heads it keeps by segment, and sends each sum to the rank that
// has the segment's rows.
//
// By rows: one key is for all heads, whose gradient is one chain over queries and heads, or an indexer selects keys. A
// rank computes its own rows as a chunk of prefill does, over the keys of all ranks, which it gathers. Backward, it
// computes dq of its own rows, and of some keys the whole chain: queries and their gradients come some rows at a time.
// Of an indexer it selects the keys of rows that it is dealt, since later rows have more to score.

// Context is the rows of all ranks that divide the sequences of a batch.
type Context struct {
	Ranks  int             // above 1
	From   int             // this rank's first row
	Layout *kernels.Layout // of the rows of all of them, one rank's below the other's

	dealt *kernels.Layout // of the rows that this rank is dealt
}

// dealtRows is the layout of the rows that this rank is dealt, so that ranks have as many pairs of a row and a key
// before it.
func (b *Batch) dealtRows(r *parallel.Rank) *kernels.Layout {
	c := b.Context
	if c.dealt == nil {
		c.dealt = c.Layout.Part(c.Layout.DealRows(c.Ranks)[b.place(r)]...)
	}
	return c.dealt
}

// deal brings the rows that each rank is dealt of tensors that have this rank's; collectDealt is the way back.
func (b *Batch) deal(g *parallel.Group, pairs ...parallel.Pair) *parallel.Exchange {
	return g.Deal(b.Context.Layout.DealRows(b.Context.Ranks), pairs...)
}

func (b *Batch) collectDealt(g *parallel.Group, pairs ...parallel.Pair) *parallel.Exchange {
	return g.CollectDealt(b.Context.From, b.Context.Layout.DealRows(b.Context.Ranks), pairs...)
}

// sequences is the layout of the rows that a mixer sees: whole sequences.
func (b *Batch) sequences() *kernels.Layout {
	if b.Context == nil {
		return b.Layout
	}
	return b.Context.Layout
}

// toHeads is all rows of this rank's heads, of tensors [T, n] whose columns are those of all heads.
func (b *Batch) toHeads(r *parallel.Rank, own ...kernels.Tensor) []kernels.Tensor {
	return b.beginHeads(r, own...).wait()
}

// headRows are tensors of toHeads that are on their way: operations enqueued before wait run at the same time.
type headRows struct {
	heads []kernels.Tensor
	come  *parallel.Exchange
}

func (b *Batch) beginHeads(r *parallel.Rank, own ...kernels.Tensor) headRows {
	if b.Context == nil {
		return headRows{heads: own}
	}
	var x headRows
	var pairs []parallel.Pair
	for _, t := range own {
		x.heads = append(x.heads, r.Stack.New(t.DType, b.Context.Layout.Rows(), t.Cols/b.Context.Ranks))
		pairs = append(pairs, parallel.Pair{Dst: x.heads[len(x.heads)-1], Src: t})
	}
	x.come = b.begin(r, (*parallel.Group).RowsToHeads, pairs)
	return x
}

func (x headRows) wait() []kernels.Tensor {
	x.come.Wait()
	return x.heads
}

// toRows is the way back: it fills Dst [T, n] of each pair.
func (b *Batch) toRows(r *parallel.Rank, pairs ...parallel.Pair) {
	b.exchange(r, (*parallel.Group).HeadsToRows, pairs)
}

// exchange waits for one of the ranks that divide the sequences. It does not yield to another lane: a short pack has no
// such exchanges, and its lane would overtake that of the packs before it.
func (b *Batch) exchange(r *parallel.Rank, begin func(*parallel.Group, ...parallel.Pair) *parallel.Exchange,
	pairs []parallel.Pair) {
	b.begin(r, begin, pairs).Wait()
}

// begin is an exchange that has begun; nil in a plan.
func (b *Batch) begin(r *parallel.Rank, begin func(*parallel.Group, ...parallel.Pair) *parallel.Exchange,
	pairs []parallel.Pair) *parallel.Exchange {
	g := r.Context(b.Context.Ranks)
	if g == nil { // a plan
		bytes := 0
		for _, p := range pairs {
			bytes += p.Dst.Bytes() * (b.Context.Ranks - 1) / b.Context.Ranks
		}
		kernels.CountExchange(r.Dev, kernels.ExchangeContext, bytes)
		return nil
	}
	return begin(g, pairs...)
}

// gather is the rows of all ranks, of tensors that have this rank's.
func (b *Batch) gather(r *parallel.Rank, own ...kernels.Tensor) (all []kernels.Tensor) {
	if b.Context == nil {
		return own
	}
	var pairs []parallel.Pair
	for _, t := range own {
		all = append(all, r.Stack.New(t.DType, b.Context.Layout.Rows(), t.Cols))
		pairs = append(pairs, parallel.Pair{Dst: all[len(all)-1], Src: t})
	}
	b.exchange(r, (*parallel.Group).AllGather, pairs)
	return all
}

// gatherKV is the keys and values of all ranks. Values may be the first columns of their keys.
func (b *Batch) gatherKV(r *parallel.Rank, kv kernels.KV) kernels.KV {
	if kv.K.Data != kv.V.Data {
		all := b.gather(r, kv.K, kv.V)
		return kernels.KV{K: all[0], V: all[1]}
	}
	k := b.gather(r, kv.K)[0]
	return kernels.KV{K: k, V: k.ColRange(0, kv.V.Cols)}
}

// rowsBackward is attendBackward of ranks that divide rows; selected nil: each row reads all keys up to its own. Then
// later ranks have more work as queries, and earlier ones as keys: each takes the keys of its own rows, and dq comes
// between parts of dk and dv, so none waits long. Rows with lists have much the same work as queries, and most lists
// have the first keys: ranks are dealt tiles of keys.
func (b *Batch) rowsBackward(r *parallel.Rank, dev kernels.DividedAttention, d qkv, dout, out, lse kernels.Tensor,
	x qkv, selected kernels.Tensor, a kernels.Attn) {
	defer r.Stack.Release(r.Stack.Mark())
	own, rows := d.q.Rows, b.Context.Layout.Rows()
	delta := r.Stack.New(kernels.F32, own, a.Heads)
	dev.AttentionDelta(delta, dout, out, a)
	kv, dealt := b.gatherKV(r, kernels.KV{K: x.k, V: x.v}), !selected.IsNil()
	keys := [][2]int{{b.Context.From, b.Context.From + own}}
	if dealt {
		keys = b.Context.Layout.DealKeys(b.Context.Ranks)[b.place(r)]
	}
	sums := r.Stack.New(kernels.F32, rows, a.KVHeads*(a.HeadDim+a.Values()))
	dk, dv := r.Stack.New(d.k.DType, rows, d.k.Cols), r.Stack.New(d.v.DType, rows, d.v.Cols)
	queries := b.queryParts(r, a, x.q, dout, lse, delta, selected)
	next := queries.begin(r, 0)
	for i := range queries.parts() {
		came := next
		if i+1 < queries.parts() {
			next = queries.begin(r, i+1)
		}
		came.Wait()
		from, to, all := queries.part(i)
		dev.AttentionKeyGrad(dk, dv, sums, all[1], all[3], all[2], all[0], kv, all[4], b.Context.Layout, a,
			kernels.KeyPart{From: from, To: to, Keys: keys, Begins: from == 0, Ends: to == rows})
		if i == 0 {
			dev.AttentionQueryGrad(d.q, dout, delta, lse, x.q, kv, selected, b.Layout, a)
		}
	}
	if dealt {
		b.exchange(r, b.collectKeys, []parallel.Pair{{Dst: d.k, Src: dk}, {Dst: d.v, Src: dv}})
		return
	}
	r.Dev.Copy(d.k, dk.RowRange(b.Context.From, b.Context.From+own))
	r.Dev.Copy(d.v, dv.RowRange(b.Context.From, b.Context.From+own))
}

// collectKeys is this rank's rows of what ranks computed of the keys they were dealt.
func (b *Batch) collectKeys(g *parallel.Group, pairs ...parallel.Pair) *parallel.Exchange {
	return g.Collect(b.Context.From, b.Context.Layout.DealKeys(b.Context.Ranks), pairs...)
}

// mostQueries is the rows of a part of the queries of all ranks. Chains are read and written once for each part.
const mostQueries = 8192

// queryParts gathers queries of all ranks some rows at a time: one part comes while another is read.
type queryParts struct {
	b     *Batch
	rows  []int                // the first of each part, and the end of the last
	own   [5]kernels.Tensor    // q, dout, lse, delta and lists of this rank's rows; lists nil: there are none
	slots [2][5]kernels.Tensor // room for those of a part
}

// queryParts cuts the rows of all ranks. Where chains go over heads first they have all rows at once.
func (b *Batch) queryParts(r *parallel.Rank, a kernels.Attn, q, dout, lse, delta, selected kernels.Tensor) *queryParts {
	p := &queryParts{b: b, own: [5]kernels.Tensor{q, dout, lse, delta, selected}}
	rows, parts := b.Context.Layout.Rows(), 1
	if a.Latent {
		parts = min(max(2*b.Context.Ranks, (rows+mostQueries-1)/mostQueries), rows)
	}
	for i := range parts + 1 {
		p.rows = append(p.rows, i*rows/parts)
	}
	for i := range min(parts, 2) {
		for k, t := range p.own {
			if !t.IsNil() {
				p.slots[i][k] = r.Stack.New(t.DType, (rows+parts-1)/parts, t.Cols)
			}
		}
	}
	return p
}

func (p *queryParts) parts() int { return len(p.rows) - 1 }

// part is the rows [from, to) of part i and the room for their tensors.
func (p *queryParts) part(i int) (from, to int, all [5]kernels.Tensor) {
	from, to, all = p.rows[i], p.rows[i+1], p.slots[i%2]
	for k, t := range all {
		if !t.IsNil() {
			all[k] = t.RowRange(0, to-from)
		}
	}
	return from, to, all
}

// begin begins to gather part i from the ranks that have its rows.
func (p *queryParts) begin(r *parallel.Rank, i int) *parallel.Exchange {
	var pairs []parallel.Pair
	from, to, all := p.part(i)
	for k, t := range p.own {
		if !t.IsNil() {
			first, end := from-p.b.Context.From, to-p.b.Context.From
			src := t.RowRange(min(max(first, 0), t.Rows), min(max(end, 0), t.Rows))
			pairs = append(pairs, parallel.Pair{Dst: all[k], Src: src})
		}
	}
	return p.b.begin(r, (*parallel.Group).AllGather, pairs)
}

// addHeadSums adds headSums of parts of a parameter, one part behind the other, to its gradient: those of this rank's
// segments, in order.
func (b *Batch) addHeadSums(r *parallel.Rank, p *Param, parts ...kernels.Tensor) {
	if p == nil || !p.Trained() {
		return
	}
	defer r.Stack.Release(r.Stack.Mark())
	segments, n := len(b.Layout.Segments)-1, p.W.Rows*p.W.Cols
	sums, at := r.Stack.New(kernels.F32, segments, n), 0
	var pairs []parallel.Pair
	for _, p := range parts {
		p = p.Reshape(p.Groups, p.Rows*p.Cols)
		to := at + p.Cols*b.Context.Ranks
		pairs = append(pairs, parallel.Pair{Dst: sums.ColRange(at, to), Src: p})
		at = to
	}
	b.toRows(r, pairs...)
	if !b.apart() {
		r.Dev.Accumulate(p.Grad, sums)
		return
	}
	for i := range segments {
		r.Dev.Accumulate(p.Grad.Group(i), sums.RowRange(i, i+1))
	}
}

// headSums is room for what a mixer sums over rows of its heads, for the part [rows, cols] of a parameter that they
// have: a sum for each segment of all ranks, from +0. The zero Tensor: the parameter is not trained.
func (b *Batch) headSums(r *parallel.Rank, p *Param, rows, cols int) kernels.Tensor {
	if p == nil || !p.Trained() {
		return kernels.Tensor{}
	}
	t := r.Stack.NewGrouped(kernels.F32, len(b.Context.Layout.Segments)-1, rows, cols)
	r.Dev.Zero(t)
	return t
}

// place is this rank's among those that divide the sequences.
func (b *Batch) place(r *parallel.Rank) int { return r.ID % b.Context.Ranks }

// ownColumns is those of this rank's heads, of a vector [1, n] of all heads.
func (b *Batch) ownColumns(r *parallel.Rank, t kernels.Tensor) kernels.Tensor {
	n := t.Cols / b.Context.Ranks
	return t.ColRange(b.place(r)*n, (b.place(r)+1)*n)
}

// ownConv visits the channels of this rank's heads in a convolution whose parts are those of all heads, one part behind
// the other, with the weight and bias of each; u are this rank's columns of each part.
func (b *Batch) ownConv(r *parallel.Rank, u []kernels.Tensor, w, bias *Param,
	visit func(i int, w, bias kernels.Tensor)) {
	at := 0
	for i, t := range u {
		from := at + b.place(r)*t.Cols
		var of kernels.Tensor
		if bias != nil {
			of = bias.W.ColRange(from, from+t.Cols)
		}
		visit(i, w.W.RowRange(from, from+t.Cols), of)
		at += t.Cols * b.Context.Ranks
	}
}

// convolve is the short convolution of all rows of this rank's heads.
func (b *Batch) convolve(r *parallel.Rank, dev kernels.Recurrent, u []kernels.Tensor, w, bias *Param) []kernels.Tensor {
	y := like(r, u...)
	b.ownConv(r, u, w, bias, func(i int, w, bias kernels.Tensor) {
		dev.ShortConv(y[i], u[i], w, bias, kernels.Tensor{}, b.sequences())
	})
	return y
}

// convolveBackward is du, the parts of this rank's rows, from dy of its heads: a part goes back to its rows while the
// next is computed. Gradients of the weights accumulate.
func (b *Batch) convolveBackward(r *parallel.Rank, dev kernels.Recurrent, du, dy, u []kernels.Tensor, w, bias *Param) {
	own := like(r, u...)
	var dw, dbias []kernels.Tensor
	var back []*parallel.Exchange
	b.ownConv(r, u, w, bias, func(i int, of, ofBias kernels.Tensor) {
		dw, dbias = append(dw, b.headSums(r, w, of.Rows, of.Cols)), append(dbias, b.headSums(r, bias, 1, of.Rows))
		dev.ShortConvBackward(own[i], dw[i], dbias[i], dy[i], u[i], of, ofBias, b.sequences())
		back = append(back, b.begin(r, (*parallel.Group).HeadsToRows, []parallel.Pair{{Dst: du[i], Src: own[i]}}))
	})
	b.addHeadSums(r, w, dw...)
	b.addHeadSums(r, bias, dbias...)
	for _, x := range back {
		x.Wait()
	}
}

// like is tensors of the shapes of others.
func like(r *parallel.Rank, of ...kernels.Tensor) (list []kernels.Tensor) {
	for _, t := range of {
		list = append(list, r.Stack.New(t.DType, t.Rows, t.Cols))
	}
	return list
}

// headsOf is the shape of attention over this rank's heads.
func (b *Batch) headsOf(a kernels.Attn) kernels.Attn {
	a.Heads, a.KVHeads = a.Heads/b.Context.Ranks, a.KVHeads/b.Context.Ranks
	return a
}

// recurrenceOf is the shape of a recurrence over this rank's heads.
func (b *Batch) recurrenceOf(s kernels.Recurrence) kernels.Recurrence {
	s.Heads, s.KeyHeads = s.Heads/b.Context.Ranks, s.KeyHeads/b.Context.Ranks
	return s
}

// CheckContext is an error where so many ranks cannot divide the heads of every layer that looks at other rows. Any
// number of them can divide rows.
func (m *Model) CheckContext(ranks int) error {
	if ranks > 1 && m.Indexing != IndexersFrozen {
		return fmt.Errorf("parallel.context: indexers do not learn on ranks that divide sequences: set 1, or " +
			"indexer.stage = \"\"")
	}
	at := slices.IndexFunc(m.Blocks, func(bl Block) bool { return !bl.divides(ranks) })
	if at < 0 {
		return nil
	}
	n, key := m.Blocks[at].mixer().contextHeads()
	list := []string{"1"}
	for fewer := 2; fewer < ranks; fewer++ {
		if !slices.ContainsFunc(m.Blocks, func(bl Block) bool { return !bl.divides(fewer) }) {
			list = append(list, fmt.Sprint(fewer))
		}
	}
	return fmt.Errorf("parallel.context: %d ranks do not divide the %d heads of %s (layer %d of %s): set %s", ranks, n,
		key, at, m.Family, strings.Join(list, " or "))
}

// divides tells whether so many ranks can divide the heads of the block's mixer, or its rows.
func (bl Block) divides(ranks int) bool {
	mixer := bl.mixer()
	if mixer == nil || ranks <= 1 {
		return true
	}
	n, _ := mixer.contextHeads()
	return n%ranks == 0
}
