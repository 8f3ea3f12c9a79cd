//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Numbers of sparse.cu: threads of its blocks, columns of a slice, key blocks of a slice in shared memory.
const (
	unionThreads = 512
	dotsThreads  = 128
	alongThreads = 256
	alongBlocks  = 9
)

// sparse is one call of SparseAttend or of its gradient: the plan and the workspace.
type sparse struct {
	*sparsePlan
	d                *Device
	picks            kernels.Tensor // nil: every row's list is all keys up to its own
	kv               kernels.KV
	a                kernels.Attn
	topK, most, wide int          // entries of a list, at most; keys of a tile; entries of a list in whole blocks
	rows, at, counts cu.DevicePtr // of the unions: rows of K and V, places of entries, how many
	dots, weights    cu.DevicePtr
}

// newSparse plans a call; more are further pieces of its workspace, in fp32 numbers, for each row of it and at once.
func (d *Device) newSparse(kv kernels.KV, picks kernels.Tensor, l *kernels.Layout, a kernels.Attn, moreOfRow, more []int) (*sparse, []cu.DevicePtr) {
	each := attentionRows / (a.Heads / a.KVHeads)
	s := &sparse{d: d, picks: picks, kv: kv, a: a, topK: picks.Cols}
	if picks.IsNil() {
		s.topK = longest(l)
	}
	s.wide = blocks(s.topK, keyRows) * keyRows
	s.sparsePlan = planSparse(d, kv, l, each, 4*a.Heads*s.wide)
	s.most = min(s.longest, each*s.topK)
	pairs := s.mostRows * a.Heads
	sizes := []int{s.mostTiles * s.most, s.mostRows * s.topK, s.mostTiles, pairs * s.topK, (pairs*s.wide + 1) / 2}
	for _, n := range moreOfRow {
		sizes = append(sizes, s.mostRows*n)
	}
	parts := d.floats(append(sizes, more...)...)
	s.rows, s.at, s.counts, s.dots, s.weights = parts[0], parts[1], parts[2], parts[3], parts[4]
	return s, parts[5:]
}

// union finds the keys on the lists of each tile of a call.
func (s *sparse) union(c sparseCall) {
	s.d.launch("sparse_union", [3]int{c.tiles, 1, 1}, unionThreads, 12*blocks(s.longest, 64), s.rows, s.at, s.counts, s.picks, c.tilesAt, s.pages,
		s.kv.PageRows, s.topK, s.most, s.picks.Stride)
}

// multiply writes the dots of q [T, Heads*dim] and the listed rows of k [.., KVHeads*dim]. Few tiles are cut into parts of their keys, so that blocks fill the card twice.
func (s *sparse) multiply(c sparseCall, dots cu.DevicePtr, q, k kernels.Tensor, dim int) {
	parts := min(blocks(2*s.d.processors, c.tiles*s.a.KVHeads), blocks(s.most, keyRows))
	size := 2 * attentionRows * (blocks(dim, 16)*16 + 8)
	shared := size + 2*max(size, 4*keyRows*(keyRows+4))
	s.d.launch(fmt.Sprintf("sparse_dots_%d", dim), [3]int{c.tiles, s.a.KVHeads, parts}, dotsThreads, shared, dots, q, k, c.tilesAt, s.rows, s.at, s.counts,
		s.a.Heads/s.a.KVHeads, s.topK, s.most, q.Stride, k.Stride)
}

// softmax is what sparse_soften leaves for sparse_along; zero: none.
type softmax struct {
	decays, merges, inverse cu.DevicePtr
}

// along adds rows of x [.., KVHeads*width] up to out [T, Heads*width], a block for a slice of a head's columns.
func (s *sparse) along(c sparseCall, out, x kernels.Tensor, width int, f softmax) {
	slice, name, split := 64, "sparse_along", s.d.def.KeySplit
	if width%slice != 0 {
		slice = 16
	}
	if f.merges != 0 && s.topK > split {
		name += "_splits"
	}
	shared := 2 * (slice + 8) * (alongBlocks*keyRows + 1 + alongThreads/32*16)
	s.d.launch(fmt.Sprintf("%s_%d", name, slice), [3]int{c.tiles, s.a.KVHeads * blocks(width, slice), 1}, alongThreads, shared, out, x, s.weights, f.decays, f.merges, f.inverse,
		c.tilesAt, s.rows, s.at, s.counts, s.a.Heads/s.a.KVHeads, s.a.KVHeads, width, s.topK, s.most, out.Stride, x.Stride, split)
}

// SparseAttend is Attention to the keys in picks int32 [T, TopK]: q [T, Heads*HeadDim], out [T, Heads*ValueDim], lse F32 [T, Heads].
func (d *Device) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, picks kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	mustAttendSparsely(a, picks, q, kv.K, kv.V, out)
	if absorbed(a) {
		d.attendAbsorbed(out, lse, q, kv, picks, l, a)
		return
	}
	split := d.def.KeySplit
	s, parts := d.newSparse(kv, picks, l, a, []int{a.Heads * blocks(picks.Cols, keyRows), 2 * a.Heads * blocks(picks.Cols, split), a.Heads}, nil)
	f := softmax{decays: parts[0], merges: parts[1], inverse: parts[2]}
	for _, c := range s.calls {
		s.union(c)
		s.multiply(c, s.dots, q, kv.K, a.HeadDim)
		d.launch("sparse_soften", warps(c.rows*a.Heads), warpThreads, 0, s.weights, f.decays, f.merges, f.inverse, lse, s.dots, c.rowsAt, c.rows, a.Heads, picks.Cols, lse.Stride,
			split, scoreScale(a))
		s.along(c, out, kv.V, a.Values(), f)
	}
}

// attendsSparsely tells whether the kernels are written for a shape.
func attendsSparsely(a kernels.Attn) bool {
	return attends(a) && (latent(a) || absorbed(a)) && a.Window == 0
}

// mustAttendSparsely panics with what the kernels cannot do.
func mustAttendSparsely(a kernels.Attn, picks kernels.Tensor, ts ...kernels.Tensor) {
	mustAttend(a, ts...)
	if !attendsSparsely(a) || picks.DType != kernels.I32 {
		panic(kernels.Fault{Err: fmt.Errorf("sparse attention on the GPU is written for heads of %v, absorbed ones of %v, not %+v on %s", headDimsLatent, headDimsAbsorbed, a, picks)})
	}
}
