//go:build cuda

package recurrent

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/rows"
)

// places are where each row lies in its span.
func places(l *kernels.Layout) []shortconvPlace {
	at := make([]shortconvPlace, l.Rows())
	for _, s := range l.Spans {
		for r := range s.Rows {
			at[s.Row+r] = shortconvPlace{pos: int32(s.Pos + r), first: int32(s.Pos), last: int32(s.Pos + s.Rows - 1),
				slot: int32(s.Slot)}
		}
	}
	return at
}

// ShortConv is kernels.Recurrent's: x, out [T, C], w [C, K], bias [1, C] or nil, state [slots, K-1, C] or nil.
func (d *Ops) ShortConv(out, x, w, bias, state kernels.Tensor, l *kernels.Layout) {
	taps := w.Cols
	launchShortConv(d.Context, driver.Suffix(x), driver.ElementGrid(x.Rows, x.Cols), driver.ElementThreads, 0, out, x,
		w, bias, state, driver.Stage(d.Context, places(l)), x.Rows, x.Cols, taps, out.Stride, x.Stride, w.Stride)
	if state.IsNil() {
		return
	}
	var rows, to []int32
	for _, s := range l.Spans {
		for r := max(0, s.Rows-(taps-1)); r < s.Rows; r++ {
			rows, to = append(rows, int32(s.Row+r)), append(to, int32(s.Slot*(taps-1)+(s.Pos+r)%(taps-1)))
		}
	}
	launchShortConvKeep(d.Context, driver.Suffix(x), driver.ElementGrid(len(rows), x.Cols), driver.ElementThreads, 0,
		state, x, driver.Stage(d.Context, rows), driver.Stage(d.Context, to), len(rows), x.Cols, x.Stride)
}

// ShortConvBackward writes dx [T, C] and adds to dw F32 [C, K] and dbias F32 [1, C], each of which may be nil.
func (d *Ops) ShortConvBackward(dx, dw, dbias, dout, x, w, bias kernels.Tensor, l *kernels.Layout) {
	taps, n, blocks := w.Cols, x.Cols, rows.StageBlocks(d.Context, l.Segments)
	parts := d.Floats(x.Rows*n, blocks.Count*n*taps, blocks.Count*n)
	du, sums, biases, at := parts[0], parts[1], parts[2], driver.Stage(d.Context, places(l))
	launchShortConvSlope(d.Context, driver.Suffix(x), driver.ElementGrid(x.Rows, n), driver.ElementThreads, 0, du, dout,
		x, w, bias, at, x.Rows, n, taps, dout.Stride, x.Stride, w.Stride)
	launchShortConvBackward(d.Context, driver.Suffix(x), driver.ElementGrid(x.Rows, n), driver.ElementThreads, 0, dx,
		du, w, at, x.Rows, n, taps, dx.Stride, w.Stride)
	if dw.IsNil() && dbias.IsNil() {
		return
	}
	launchShortConvBlocks(d.Context, driver.Suffix(x), [3]int{driver.Blocks(n, 64), blocks.Count, taps}, 64, 0, sums,
		biases, du, x, at, blocks.Rows, n, taps, x.Stride)
	if !dw.IsNil() {
		rows.AddBlocks(d.Context, dw, sums, blocks)
	}
	if !dbias.IsNil() {
		rows.AddBlocks(d.Context, dbias, biases, blocks)
	}
}
