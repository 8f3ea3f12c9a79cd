//go:build cuda

package rows

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// Quantize puts numbers into codes and scales.
func (d *Ops) Quantize(w kernels.QuantizedWeight, x kernels.Tensor, e quant.Encoding, starts []int) {
	if x.DType != kernels.F32 || x.Groups != w.Groups || x.Rows != w.Rows || x.Cols != w.Cols || !x.Contiguous() ||
		w.Format != e.Format() || len(starts) > quantizeMostParts {
		panic(fmt.Sprintf("cuda: Quantize: %s to %s by %s, parts at rows %v", x, w, e, starts))
	}
	rows := w.Groups * w.Rows
	if e != quant.FP8 {
		threads := rows * driver.Blocks(w.Cols, encodeINT4Group) * (encodeINT4Group / 8)
		launchQuantize(d.Context, "_"+string(e), [3]int{driver.Blocks(threads, driver.ElementThreads), 1, 1},
			driver.ElementThreads, 0, w.Codes, w.Scales, x, rows, w.Rows, w.Cols, w.Codes.Cols)
		return
	}
	var parts quantizeParts
	parts.count = int32(len(starts))
	down := 0
	for i, from := range append(starts, w.Rows) {
		parts.start[i] = int32(from)
		if i > 0 {
			down += driver.Blocks(from-starts[i-1], encodeFP8Block)
		}
	}
	launchQuantizeFp8(d.Context, [3]int{driver.Blocks(w.Cols, encodeFP8Block), down, w.Groups}, encodeSquareThreads, 0,
		w.Codes, w.Scales, x, &parts, w.Rows, w.Cols, w.Codes.Cols)
}

// QuantizeRows puts rows, F32 or BF16, into codes by FP8x128.
func (d *Ops) QuantizeRows(w kernels.QuantizedWeight, x kernels.Tensor) {
	if x.Groups != 1 || w.Groups != 1 || x.Rows != w.Rows || x.Cols != w.Cols ||
		w.Format != quant.FP8x128.Format() {
		panic(fmt.Sprintf("cuda: QuantizeRows: %s to %s", x, w))
	}
	blocks := driver.Blocks(w.Cols, encodeFP8Block)
	launchQuantizeRows(d.Context, driver.Suffix(x), [3]int{driver.Blocks(w.Rows*blocks*encodeAcross,
		driver.ElementThreads), 1, 1}, driver.ElementThreads, 0, w.Codes, w.Scales, x, w.Rows, w.Cols, w.Codes.Cols,
		x.Stride)
}
