package kernels

import "math"

// KeyPart is a part of the work of dk and dv: some queries continue the chains of some keys.
type KeyPart struct {
	From, To int      // rows of the queries
	Keys     [][2]int // ranges [from, to) of rows of the keys, none in two of them
	Begins   bool     // the queries are the first: chains begin from +0
	Ends     bool     // they are the last: the gradients are written
}

// KeyWork is what the queries of a part have to do with its keys: pairs of a query and a key that it may read; those on
// its list, where any key is as likely as another; and tiles of mostKeyTile keys, each counted for each query that
// reaches it.
type KeyWork struct{ Pairs, Listed, Reached float64 }

// Work counts those of a layout of whole sequences, with lists of at most so many keys.
func (p KeyPart) Work(l *Layout, most int) (w KeyWork) {
	for _, keys := range p.Keys {
		for _, s := range l.Spans {
			first, end := float64(max(keys[0]-s.Row, 0)), float64(min(keys[1]-s.Row, s.Rows))
			from, to := float64(max(p.From-s.Row, 0)), float64(min(p.To-s.Row, s.Rows))
			if first < end && max(first, from) < to {
				w.among(first, max(from, first), min(to, end), float64(most))
				w.behind(end-first, max(from, end), to, float64(most))
			}
			for at := first; at < end; at += mostKeyTile {
				w.Reached += max(0, to-max(from, at))
			}
		}
	}
	return w
}

// among adds queries [from, to) among keys from `first` on: those that list all keys, then the others.
func (w *KeyWork) among(first, from, to, most float64) {
	if from >= to {
		return
	}
	all := min(max(from, most), to)
	first = float64(2 * first)
	w.Pairs += float64((to - from) * (from + to + 1 - first) / 2)
	w.Listed += float64((all - from) * (from + all + 1 - first) / 2)
	w.Listed += float64(most * (to - all - float64(first/2*math.Log(to/all))))
}

// behind adds queries [from, to) behind so many keys.
func (w *KeyWork) behind(keys, from, to, most float64) {
	if from >= to {
		return
	}
	all := min(max(from, most), to)
	w.Pairs += float64(keys * (to - from))
	w.Listed += float64(keys * (all - from + float64(most*math.Log(to/all))))
}

// What dk and dv along lists take on a GPU, in pairs of a tile of all pairs (0.6 ns each on an H200 for 64 heads), for
// each 64 heads: an entry of a list, and a tile of keys that a query reaches. Of 8,192 queries, see absorbed_listed.cu.
const listedHeads, listedEntry, listedTile = 64, 5.4, 10

// AlongLists is how many pairs take a GPU as long as going along lists instead.
func (w KeyWork) AlongLists(heads int) float64 {
	blocks := (heads + listedHeads - 1) / listedHeads
	each := float64(listedEntry*w.Listed) + float64(listedTile*w.Reached)
	return each * float64(blocks*listedHeads) / float64(heads)
}

// DividedAttention is [Device.AttentionBackward] and [SparseAttention.SparseAttendBackward] of sequences whose rows
// several devices have: each computes dq of its rows as queries, and dk and dv of its rows as keys. The bits are those
// of one call for all rows. selected nil: each query reads all keys up to its own. The conventions are those of Device.
type DividedAttention interface {
	// AttentionDelta writes D_i of AttentionBackward to delta F32 [T, Heads].
	AttentionDelta(delta, dout, out Tensor, a Attn)
	// AttentionQueryGrad writes dq of the rows of a layout, whose keys have rows of their own (see [Span.Shift]).
	AttentionQueryGrad(dq, dout, delta, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn)
	// AttentionKeyGrad continues dk and dv of a part by the queries of some rows of a layout of whole sequences: those
	// that q, dout, delta, lse and selected have. Between calls the chains are in sums F32 [T,
	// KVHeads*(HeadDim+ValueDim)]. kv, dk and dv have T rows. Of other keys than the part's, rows of sums, dk and dv
	// are undefined afterwards. Without [Attn.Latent] a part has all rows as queries: its chains go over heads first.
	AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q Tensor, kv KV, selected Tensor, l *Layout, a Attn, part KeyPart)
}
