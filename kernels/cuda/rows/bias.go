//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// AddBias: out[t] = round(x[t] + bias of the row's group). out, x [T, n]; bias [groups, 1, n], g nil for one group. out
// may be x.
func (d *Ops) AddBias(out, x, bias kernels.Tensor, g *kernels.Groups) {
	one := kernels.Groups{Count: 1, Segments: 1}
	if g != nil {
		one = *g
	}
	launchAddBias(d.Context, driver.Suffix(x)+driver.Suffix(bias), driver.ElementGrid(x.Rows, x.Cols),
		driver.ElementThreads, 0, out, x, bias, one.Offsets, one.Count, one.Segments, x.Rows, x.Cols, out.Stride,
		x.Stride)
}

// BiasGrad: dbias F32 [groups, 1, n] += dy [T, n], for each group a sum over the rows of its segments.
func (d *Ops) BiasGrad(dbias, dy kernels.Tensor, g *kernels.Groups) {
	launchBiasGrad(d.Context, driver.Suffix(dy), [3]int{driver.Blocks(dy.Cols, 32), g.Count, 1}, 32, 0, dbias, dy,
		g.Offsets, g.Segments, dy.Cols, dy.Stride)
}
