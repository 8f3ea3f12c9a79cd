//go:build cuda

package rows

import (
	"fmt"
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Zero clears a tensor of any type. Padding between rows stays.
func (d *Ops) Zero(t kernels.Tensor) {
	variant := "32"
	if t.DType == kernels.BF16 {
		variant = "16"
	}
	rows, cols := driver.Flat(t)
	launchZero(d.Context, variant, driver.ElementGrid(rows, cols), driver.ElementThreads, 0, t, rows, cols, t.Stride)
}

// Copy copies a tensor of the same shape, strides free, and converts F32 to BF16 (to nearest even) or back (exact).
func (d *Ops) Copy(dst, src kernels.Tensor) {
	if dst.Groups != src.Groups || dst.Rows != src.Rows || dst.Cols != src.Cols || (dst.DType == kernels.I32) !=
		(src.DType == kernels.I32) {
		panic(fmt.Sprintf("cuda: copy %s to %s", src, dst))
	}
	variant := "32"
	switch {
	case dst.DType == kernels.BF16 && src.DType == kernels.BF16:
		variant = "16"
	case dst.DType == kernels.BF16:
		variant = "_bf16_f32"
	case src.DType == kernels.BF16:
		variant = "_f32_bf16"
	}
	rows, cols := driver.Flat(dst, src)
	launchCopy(d.Context, variant, driver.ElementGrid(rows, cols), driver.ElementThreads, 0, dst, src, rows, cols,
		dst.Stride, src.Stride)
}

// Add: out = round(a + b), all [T, H]. out may be a or b.
func (d *Ops) Add(out, a, b kernels.Tensor) {
	rows, cols := driver.Flat(out, a, b)
	launchAdd(d.Context, driver.Suffix(out), driver.ElementGrid(rows, cols), driver.ElementThreads, 0, out, a, b, rows,
		cols, out.Stride, a.Stride, b.Stride)
}

// Accumulate: dst = ((dst + parts[0]) + parts[1]) + ..., with dst F32 [1, n] and parts F32 [S, n], and then others.
func (d *Ops) Accumulate(dst, parts kernels.Tensor, then ...kernels.PartSum) {
	all := append([]kernels.PartSum{{Dst: dst, Parts: parts}}, then...)
	for some := range slices.Chunk(all, elementwiseMostSums) {
		sums, most := &elementwiseSums{}, 0
		for i, s := range some {
			n := s.Dst.Len()
			if !s.Dst.Contiguous() || s.Parts.Groups != 1 || s.Parts.Cols != n {
				panic(fmt.Sprintf("cuda: accumulate %s in %s", s.Parts, s.Dst))
			}
			sums.dst[i], sums.parts[i] = uint64(driver.Address(s.Dst)), uint64(driver.Address(s.Parts))
			sums.cols[i], sums.count[i] = driver.Int32(n), driver.Int32(s.Parts.Rows)
			sums.stride[i], most = driver.Int32(s.Parts.Stride), max(most, n)
		}
		grid := driver.ElementGrid(1, most)
		grid[1] = len(some)
		launchAccumulate(d.Context, grid, driver.ElementThreads, 0, sums)
	}
}

// Scale: out = round(x * a), both [T, H]. out may be x.
func (d *Ops) Scale(out, x kernels.Tensor, a float32) {
	rows, cols := driver.Flat(out, x)
	launchScale(d.Context, driver.Suffix(out), driver.ElementGrid(rows, cols), driver.ElementThreads, 0, out, x, a,
		rows, cols, out.Stride, x.Stride)
}
