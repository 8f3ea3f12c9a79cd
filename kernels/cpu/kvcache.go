package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// StoreKV copies rows k, v [T, KVHeads*HeadDim] to positions Pos, Pos+1, ... of their spans' pages, bits unchanged, or
// puts them into codes.
func (d *Device) StoreKV(cache kernels.KV, k, v kernels.Tensor, l *kernels.Layout) {
	if cache.Codes != nil {
		d.storeCodes(cache, k, v, l)
		return
	}
	if cache.PageRows <= 0 || k.DType != cache.K.DType || v.DType != cache.V.DType || k.Cols != cache.K.Cols ||
		v.Cols != cache.V.Cols {
		panic(fmt.Sprintf("cpu: StoreKV of %s and %s in pages of %d rows of %s and %s", k, v, cache.PageRows, cache.K,
			cache.V))
	}
	d.eachCached(cache, l, func(at, row int) {
		copyRow(cache.K, at, k, row)
		copyRow(cache.V, at, v, row)
	})
}

// eachCached calls store for each row of a layout, with the row of the pages that it goes to.
func (d *Device) eachCached(cache kernels.KV, l *kernels.Layout, store func(at, row int)) {
	for i := range l.Spans {
		s := &l.Spans[i]
		d.pool.each(s.Rows, 64, func(_, from, to int) {
			for r := from; r < to; r++ {
				store(cacheRow(cache, s, s.Pos+r), s.Row+r)
			}
		})
	}
}

// cacheRow is the row of K and V that holds a position of a span's sequence.
func cacheRow(kv kernels.KV, s *kernels.Span, pos int) int {
	if kv.PageRows == 0 {
		return s.KeyRow() + pos
	}
	return int(s.Pages[pos/kv.PageRows])*kv.PageRows + pos%kv.PageRows
}

func copyRow(dst kernels.Tensor, to int, src kernels.Tensor, from int) {
	if dst.DType == kernels.BF16 {
		copy(dst.BF16s()[to*dst.Stride:][:dst.Cols], src.BF16s()[from*src.Stride:])
		return
	}
	copy(dst.F32s()[to*dst.Stride:][:dst.Cols], src.F32s()[from*src.Stride:])
}

// heads is columns [head*width, (head+1)*width) of t at positions [from, to) of a span as an fp32 matrix: a view of t
// itself where its rows lie evenly in fp32, else a copy in buf. Rows of other positions are never read: their content
// is undefined.
func (d *Device) heads(buf []float32, t kernels.Tensor, kv kernels.KV, s *kernels.Span, head, width, from,
	to int) gemm.View {
	if kv.PageRows == 0 && t.DType == kernels.F32 {
		return gemm.View{X: t.F32s()[(s.KeyRow()+from)*t.Stride+head*width:], RS: t.Stride, CS: 1}
	}
	m := d.matrix(t)
	for p := from; p < to; p++ {
		m.copyHead(buf[(p-from)*width:][:width], cacheRow(kv, s, p), head)
	}
	return gemm.View{X: buf, RS: width, CS: 1}
}

// transposed swaps the rows and columns of a view.
func transposed(v gemm.View) gemm.View { return gemm.View{X: v.X, RS: v.CS, CS: v.RS} }

// copyHead fills dst with the columns of one head, or of one group of heads, as wide as dst, of a row.
func (m *matrix) copyHead(dst []float32, row, head int) {
	x := m.loadPart(row, head*len(dst), (head+1)*len(dst), dst)
	if m.f != nil {
		copy(dst, x)
	}
}

// storeHead writes round(src + 0) to the columns of one head or group of heads. Adding +0 makes -0 canonical: only the
// sign of a zero could depend on the number of masked products in a chain. src may be overwritten.
func (m *matrix) storeHead(row, head int, src []float32) {
	from, dst := head*len(src), src
	if m.f != nil {
		dst = m.f[row*m.stride+from:][:len(src)]
	}
	for i := 0; i < len(src); i += len(zeros) {
		n := min(len(zeros), len(src)-i)
		m.vec.Add(dst[i:i+n], src[i:i+n], zeros[:n])
	}
	if m.f == nil {
		m.vec.Narrow(m.h[row*m.stride+from:][:len(src)], dst)
	}
}

var zeros [256]float32

// roundToBF16 rounds values in place to those of bf16.
func roundToBF16(x []float32) {
	for i, v := range x {
		x[i] = kernels.FromBF16(kernels.RoundBF16(v))
	}
}
