//go:build cuda

package recurrent

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/rows"
)

// Decay is kernels.Recurrent's: g, step F32 [T, H] from a [T, H], rate and bias F32 [1, H].
func (d *Ops) Decay(g, step kernels.Tensor, x kernels.DecayOperands, lo, hi float32) {
	a := x.A
	launchDecay(d.Context, driver.Suffix(a), [3]int{driver.Blocks(a.Rows*a.Cols, driver.ElementThreads), 1, 1},
		driver.ElementThreads, 0, g, step, a, x.Rate, x.Bias, a.Rows, a.Cols, g.Stride, step.Stride, a.Stride, lo, hi)
}

// DecayBackward writes da [T, H] and adds to drate and dbias F32 [1, H], both or none nil; dstep may be nil.
func (d *Ops) DecayBackward(dx kernels.DecayOperands, dg, dstep, g kernels.Tensor, x kernels.DecayOperands,
	lo, hi float32, segments []int32) {
	a, n, blocks := x.A, x.A.Rows*x.A.Cols, rows.StageBlocks(d.Context, segments)
	parts := d.Floats(n, n, a.Cols*blocks.Count)
	launchDecayBackward(d.Context, driver.Suffix(a), [3]int{driver.Blocks(n, driver.ElementThreads), 1, 1},
		driver.ElementThreads, 0, dx.A, parts[0], parts[1], dg, dstep, g, a, x.Rate, x.Bias, a.Rows, a.Cols,
		dx.A.Stride, dg.Stride, dstep.Stride, g.Stride, a.Stride, lo, hi)
	if dx.Rate.IsNil() {
		return
	}
	rows.AddRows(d.Context, dx.Rate, parts[1], parts[2], blocks)
	rows.AddRows(d.Context, dx.Bias, parts[0], parts[2], blocks)
}
