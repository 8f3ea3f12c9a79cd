//go:build cuda

package rows

import (
	"fmt"
	"math"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// drawnAtOnce is how many elements a launch of Draw has at most.
const drawnAtOnce = 1 << 30

// Draw fills t, contiguous, in the memory of the card or pinned, with numbers that depend on the key and their place
// alone.
func (d *Ops) Draw(t kernels.Tensor, o kernels.Draw) {
	if !t.Contiguous() || t.DType != kernels.F32 && t.DType != kernels.BF16 {
		panic(fmt.Sprintf("cuda: Draw: %s", t))
	}
	for t = t.Reshape(1, t.Len()); t.Cols > 0; {
		part := t.ColRange(0, min(t.Cols, drawnAtOnce))
		launchDraw(d.Context, "_"+string(o.Kind)+driver.Suffix(t), driver.ElementGrid(1, part.Cols),
			driver.ElementThreads, 0, part, o.Key, o.First, o.Scale, part.Cols)
		t, o.First = t.ColRange(part.Cols, t.Cols), o.First+part.Cols
	}
}

// DrawCodes fills the codes of a weight, whose first matrix is matrix `first` of the key, and makes all scales one.
func (d *Ops) DrawCodes(w kernels.QuantizedWeight, key uint64, first int, scale float32) {
	variant := [...]string{quant.CodeINT4: "_int4", quant.CodeE2M1: "_e2m1", quant.CodeE4M3: "_e4m3"}[w.Format.Code]
	bytes, size := w.Codes.Rows*w.Codes.Cols, w.Scales.DType.Size()
	launchDrawCodes(d.Context, variant, [3]int{driver.Blocks(bytes, 8*driver.ElementThreads), w.Groups, 1},
		driver.ElementThreads, 0, w.Codes, key, first, bytes)
	bits := math.Float32bits(scale)
	switch w.Format.Scale {
	case quant.ScaleE8M0:
		bits = uint32(quant.CodeOfScale(scale))
	case quant.ScaleBF16:
		bits = uint32(kernels.RoundBF16(scale))
	}
	launchDrawScales(d.Context, [3]int{driver.Blocks(w.Scales.Bytes(), driver.ElementThreads), 1, 1},
		driver.ElementThreads, 0, w.Scales, bits, size, w.Scales.Bytes())
}
