//go:build cuda

package attention

import (
	"cmp"
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// headDimsAbsorbed are the widths of keys and values of absorbed latent attention: all heads share one row for each
// key, whose first columns are its value.
var headDimsAbsorbed = [][2]int{{40, 32}, {72, 64}, {576, 512}}

// Absorbed tells whether a shape has the kernels of headDimsAbsorbed.
func Absorbed(a kernels.Attn) bool {
	return a.Latent && slices.Contains(headDimsAbsorbed, [2]int{a.HeadDim, a.Values()})
}

const (
	absorbedFew = 16 // of its tensor cores' rows
	// of a block with wgmma: two warpgroups that compute and one that copies, of codes two
	absorbedWideThreads, absorbedWideCodesThreads = 3 * 128, 4 * 128
)

// numberedQueries are the queries of a layout, in the order in which blocks take them.
type numberedQueries struct {
	sequences []absorbedSequence
	pages     []int32
	queries   int
}

// queryLists are the queries of a call and what they attend to.
type queryLists struct {
	*numberedQueries
	topK   int // entries of the longest list
	params absorbedLists
}

// end is the number behind the queries of a sequence.
func (n *numberedQueries) end(sequence int) int {
	if sequence+1 < len(n.sequences) {
		return int(n.sequences[sequence+1].start)
	}
	return n.queries
}

// listQueries numbers queries, those with the longest lists first; indices nil: of all keys.
func (d *Ops) listQueries(kv kernels.KV, indices kernels.Tensor, l *kernels.Layout) *queryLists {
	numbered := d.numbered.of(kv.PageRows, l, 0, func() *numberedQueries { return numberQueries(l, kv.PageRows) })
	s := &queryLists{numberedQueries: numbered, topK: 1 << 30}
	if !indices.IsNil() {
		s.topK = indices.Cols
	}
	s.params = absorbedLists{sequences: driver.Stage(d.Context, s.sequences),
		pages: driver.At(driver.Stage(d.Context, s.pages)), indices: driver.AtType(indices, kernels.I32),
		count: driver.Int32(len(s.sequences)), pageRows: driver.Int32(kv.PageRows), topK: driver.Int32(s.topK),
		stride: driver.Int32(indices.Stride)}
	return s
}

// numberQueries numbers the queries of a layout, those of the longest sequences first.
func numberQueries(l *kernels.Layout, pageRows int) *numberedQueries {
	spans, s := slices.Clone(l.Spans), &numberedQueries{}
	slices.SortStableFunc(spans, func(x, y kernels.Span) int { return cmp.Compare(y.Pos+y.Rows, x.Pos+x.Rows) })
	for _, span := range spans {
		q := absorbedSequence{start: int32(s.queries), row: int32(span.Row + span.Rows - 1),
			pos: int32(span.Pos + span.Rows - 1), base: int32(span.KeyRow()), pages: -1}
		if pageRows > 0 {
			q.pages = int32(len(s.pages))
			s.pages = append(s.pages, span.Pages...)
		}
		s.sequences = append(s.sequences, q)
		s.queries += span.Rows
	}
	return s
}

// absorbedCall is queries [first, first+count) whose lists have up to so many splits.
type absorbedCall struct{ first, count, splits int }

// calls cuts the queries so that what their splits leave in memory, so many bytes each, takes no more than the device
// has room for; lists of one split may leave nothing there.
func (s *queryLists) calls(split, bytes, room int, direct bool) (calls []absorbedCall) {
	splits := func(q absorbedSequence, number int) int {
		return driver.Blocks(min(s.topK, int(q.pos)-(number-int(q.start))+1), split)
	}
	at := 0 // the sequence of the next query
	for first := 0; first < s.queries; {
		for at+1 < len(s.sequences) && int(s.sequences[at+1].start) <= first {
			at++
		}
		most, count := splits(s.sequences[at], first), s.queries-first
		if at+1 < len(s.sequences) {
			most = max(most, splits(s.sequences[at+1], int(s.sequences[at+1].start)))
		}
		if most > 1 || !direct {
			count = min(count, max(1, room/(most*bytes)))
		}
		calls = append(calls, absorbedCall{first, count, most})
		first += count
	}
	return calls
}

// absorbedAttention is attention of one call, dense where lists have no indices.
type absorbedAttention struct {
	kernels.Attn
	out, lse, q kernels.Tensor
	kv          kernels.KV
	lists       *queryLists
	partials    cu.DevicePtr
}

func (s *absorbedAttention) name() string { return fmt.Sprintf("_%d_%d", s.HeadDim, s.ValueDim) }

// tiles is the bytes of queries and two key blocks.
func (s *absorbedAttention) tiles() int { return 2 * (absorbedHeads + 2*keyRows) * stride64(s.HeadDim) }

// attendAbsorbed is attention, dense where indices are nil.
func (d *Ops) attendAbsorbed(out, lse, q kernels.Tensor, kv kernels.KV, indices kernels.Tensor, l *kernels.Layout,
	a kernels.Attn) {
	mustShare(kv)
	s := &absorbedAttention{Attn: a, out: out, lse: lse, q: q, kv: kv, lists: d.listQueries(kv, indices, l)}
	split, row := d.Def.KeySplit, a.Heads*(a.Values()+2)
	for _, c := range s.lists.calls(split, 4*row, d.ChunkBytes, true) {
		if c.splits > 1 {
			s.partials = d.Scratch(4 * c.count * c.splits * row)
		}
		if d.absorbedWide(a) {
			d.absorbedByWgmma(s, c)
		} else {
			d.absorbedByMma(s, c)
		}
		if c.splits > 1 {
			launchAbsorbedMerge(d.Context, s.name(), [3]int{c.count, a.Heads, 1}, 32, 0, &s.lists.params, out, lse,
				s.partials, c.first, c.splits, out.Stride, lse.Stride, split)
		}
	}
}

// absorbedByWgmma is the kernels of absorbed_wide.cu.
func (d *Ops) absorbedByWgmma(s *absorbedAttention, c absorbedCall) {
	grid := [3]int{c.count, driver.Blocks(s.Heads, absorbedHeads), c.splits}
	if codes := s.kv.Codes; codes != nil {
		launchAbsorbedWideCodes(d.Context, s.name(), grid, absorbedWideCodesThreads, s.tiles(), &s.lists.params,
			s.out, s.lse, s.q, inCodes(s.kv.V, codes.VScales), codes.Rotated, s.partials, c.first, s.Heads,
			s.out.Stride, s.lse.Stride, s.q.Stride, codes.Rotated.Stride, d.Def.KeySplit, scoreScale(s.Attn))
		return
	}
	launchAbsorbedWide(d.Context, s.name(), grid, absorbedWideThreads, s.tiles(), &s.lists.params, s.out, s.lse, s.q,
		s.kv.K, s.partials, c.first, s.Heads, s.out.Stride, s.lse.Stride, s.q.Stride, s.kv.K.Stride, d.Def.KeySplit,
		scoreScale(s.Attn))
}

// absorbedByMma is the kernels of absorbed.cu.
func (d *Ops) absorbedByMma(s *absorbedAttention, c absorbedCall) {
	each := absorbedHeads
	for each > absorbedFew && c.count*c.splits*driver.Blocks(2*s.Heads, each) <= d.Processors {
		each /= 2
	}
	grid := [3]int{c.count, driver.Blocks(s.Heads, each), c.splits}
	shared := s.tiles() + 2*absorbedHeads*keyRows + 4*5*absorbedHeads + 4*2*keyRows
	if codes := s.kv.Codes; codes != nil {
		launchAbsorbedCodes(d.Context, s.name(), grid, absorbedThreads, shared, &s.lists.params, s.out, s.lse, s.q,
			inCodes(s.kv.V, codes.VScales), codes.Rotated, s.partials, c.first, s.Heads, each, s.out.Stride,
			s.lse.Stride, s.q.Stride, codes.Rotated.Stride, d.Def.KeySplit, scoreScale(s.Attn))
		return
	}
	launchAbsorbed(d.Context, s.name(), grid, absorbedThreads, shared, &s.lists.params, s.out, s.lse, s.q, s.kv.K,
		s.partials, c.first, s.Heads, each, s.out.Stride, s.lse.Stride, s.q.Stride, s.kv.K.Stride, d.Def.KeySplit,
		scoreScale(s.Attn))
}

// absorbedWide tells whether there are kernels with wgmma for a shape. They give a block all the heads it has room for
// even where that leaves processors idle: with 64 they are faster than the others with 16.
func (d *Ops) absorbedWide(a kernels.Attn) bool {
	compiled := d.Has(kernelAbsorbedWide576512)
	return compiled && d.Path != "portable" && a.HeadDim == 576 && a.Values() == 512
}

// stride64 is kStride of Lines of absorbed.cuh.
func stride64(columns int) int { return driver.Blocks(columns, 64) * 64 }

// mustShare panics where values are not the first columns of the keys.
func mustShare(kv kernels.KV) {
	if !sameRows(kv.K, kv.V) {
		panic(kernels.Fault{Err: fmt.Errorf("absorbed latent attention on the GPU reads values as the first columns "+
			"of their keys, not %v next to %v", kv.V, kv.K)})
	}
}

// sameRows tells whether v is the first columns of k, in the same memory.
func sameRows(k, v kernels.Tensor) bool {
	return k.Data == v.Data && k.Stride == v.Stride && k.DType == v.DType && v.Rows == k.Rows && v.Cols <= k.Cols
}
