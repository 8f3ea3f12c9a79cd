//go:build cuda

package gemm

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Dequantize: out = round(code*scale).
func (d *Ops) Dequantize(out kernels.Tensor, w kernels.QuantizedWeight) {
	if s := w.Shape(); out.DType != s.DType || out.Groups != s.Groups || out.Rows != s.Rows || out.Cols != s.Cols ||
		!out.Contiguous() || !w.Codes.Contiguous() || !w.Scales.Contiguous() {
		panic(fmt.Sprintf("cuda: Dequantize: %s to %s", w, out))
	}
	wide := min(w.Format.Wide, (w.Cols+7)&^7) // a multiple of 8 where all columns share a scale
	kernel := "dequantize_" + w.Format.Code.String() + "_" + w.Format.Scale.String() + driver.Suffix(out)
	launchDequantize(d.Context, kernel, [3]int{driver.Blocks(w.Cols, 256), driver.Blocks(w.Rows,
		dequantizeRows*dequantizeWarps), w.Groups}, dequantizeWarps*32, 0, out, w.Codes, w.Scales, w.Rows, w.Cols,
		w.Codes.Cols, wide)
}
