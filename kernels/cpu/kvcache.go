package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/gemm"
)

// StoreKV copies rows k, v [T, KVHeads*HeadDim] to positions Pos, Pos+1, ... of their spans' pages, bits unchanged.
func (d *Device) StoreKV(cache kernels.KV, k, v kernels.Tensor, l *kernels.Layout) {
	if cache.PageRows <= 0 || k.DType != cache.K.DType || v.DType != cache.V.DType || k.Cols != cache.K.Cols || v.Cols != cache.V.Cols {
		panic(fmt.Sprintf("cpu: StoreKV of %s and %s in pages of %d rows of %s and %s", k, v, cache.PageRows, cache.K, cache.V))
	}
	for i := range l.Spans {
		s := &l.Spans[i]
		d.pool.each(s.Rows, 64, func(_, from, to int) {
			for r := from; r < to; r++ {
				at := cacheRow(cache, s, s.Pos+r)
				copyRow(cache.K, at, k, s.Row+r)
				copyRow(cache.V, at, v, s.Row+r)
			}
		})
	}
}

// cacheRow is the row of K and V that holds a position of a span's sequence.
func cacheRow(kv kernels.KV, s *kernels.Span, pos int) int {
	if kv.PageRows == 0 {
		return s.Row + pos
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

// cached is keys or values t of one KV head at positions [from, to) as an fp32 matrix [to-from, dim]: a view of t itself where
// its rows lie evenly in fp32, else a copy in buf. Rows of other positions are never read: they may hold anything.
func (d *Device) cached(buf []float32, t kernels.Tensor, kv kernels.KV, s *kernels.Span, head, dim, from, to int) gemm.View {
	if kv.PageRows == 0 && t.DType == kernels.F32 {
		return gemm.View{X: t.F32s()[(s.Row+from)*t.Stride+head*dim:], RS: t.Stride, CS: 1}
	}
	for p := from; p < to; p++ {
		d.loadHead(buf[(p-from)*dim:][:dim], t, cacheRow(kv, s, p), head)
	}
	return gemm.View{X: buf, RS: dim, CS: 1}
}

// transposed swaps the rows and columns of a view.
func transposed(v gemm.View) gemm.View { return gemm.View{X: v.X, RS: v.CS, CS: v.RS} }

// loadHead converts the columns of one head, as wide as dst, of a row of t [rows, heads*dim].
func (d *Device) loadHead(dst []float32, t kernels.Tensor, row, head int) {
	at := row*t.Stride + head*len(dst)
	if t.DType == kernels.F32 {
		copy(dst, t.F32s()[at:][:len(dst)])
		return
	}
	d.vec.Widen(dst, t.BF16s()[at:][:len(dst)])
}

// storeHead writes round(src + 0) to the columns of one head. Adding +0 makes -0 canonical: only the sign of a zero could
// tell how many masked products a chain went through. src is overwritten.
func (d *Device) storeHead(t kernels.Tensor, row, head int, src []float32) {
	for i, x := range src {
		src[i] = x + 0
	}
	at := row*t.Stride + head*len(src)
	if t.DType == kernels.F32 {
		copy(t.F32s()[at:], src)
		return
	}
	d.vec.Narrow(t.BF16s()[at:][:len(src)], src)
}

// roundToBF16 rounds values in place to those of bf16.
func roundToBF16(x []float32) {
	for i, v := range x {
		x[i] = kernels.FromBF16(kernels.RoundBF16(v))
	}
}
