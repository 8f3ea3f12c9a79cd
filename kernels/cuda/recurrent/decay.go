//go:build cuda

package recurrent

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/kernels/cuda/rows"
)

// Decay is kernels.Recurrent's: g, step F32 [T, H] from a [T, H], rate and bias F32 [1, H].
func (d *Ops) Decay(g, step, a, rate, bias kernels.Tensor, lo, hi float32) {
	launchDecay(d.Context, driver.Suffix(a), [3]int{driver.Blocks(a.Rows*a.Cols, driver.ElementThreads), 1, 1},
		driver.ElementThreads, 0, g, step, a, rate, bias, a.Rows, a.Cols, g.Stride, step.Stride, a.Stride, lo, hi)
}

// DecayBackward writes da [T, H] and adds to drate and dbias F32 [1, H], both or none nil; dstep may be nil.
func (d *Ops) DecayBackward(da, drate, dbias, dg, dstep, g, a, rate, bias kernels.Tensor, lo, hi float32,
	packs []int32) {
	n, blocks := a.Rows*a.Cols, kernels.RowBlocks(packs)
	parts := d.Floats(n, n, a.Cols*(len(blocks)-1))
	launchDecayBackward(d.Context, driver.Suffix(a), [3]int{driver.Blocks(n, driver.ElementThreads), 1, 1},
		driver.ElementThreads, 0, da, parts[0], parts[1], dg, dstep, g, a, rate, bias, a.Rows, a.Cols, da.Stride,
		dg.Stride, dstep.Stride, g.Stride, a.Stride, lo, hi)
	if drate.IsNil() {
		return
	}
	rows.AddRows(d.Context, drate, parts[1], parts[2], blocks)
	rows.AddRows(d.Context, dbias, parts[0], parts[2], blocks)
}
