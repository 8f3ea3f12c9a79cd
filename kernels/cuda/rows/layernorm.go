//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// LayerNorm: mean = tree(x)/n, c = x - mean, rstd = 1/sqrt(tree(c*c)/n + eps), out = round(c*rstd*w + bias), over each
// row of x [T, n]; w, bias [1, n]. out may be x.
func (d *Ops) LayerNorm(out, x, w, bias kernels.Tensor, eps float32) {
	launchLayerNorm(d.Context, driver.Suffix(x), driver.WarpGrid(x.Rows), driver.WarpThreads, 0, out, x, w, bias,
		x.Rows, x.Cols, out.Stride, x.Stride, eps)
}

// LayerNormBackward writes dx [T, n] and adds to dw, dbias F32 [1, n]. dx may be dy.
func (d *Ops) LayerNormBackward(dx, dw, dbias, dy, x, w kernels.Tensor, eps float32, segments []int32) {
	blocks := StageBlocks(d.Context, segments)
	parts := d.Floats(x.Len(), x.Len(), blocks.Count*x.Cols)
	launchLayerNormBackward(d.Context, driver.Suffix(x), driver.WarpGrid(x.Rows), driver.WarpThreads, 0, dx, parts[0],
		parts[1], dy, x, w, x.Rows, x.Cols, dx.Stride, dy.Stride, x.Stride, eps)
	for i, sum := range []kernels.Tensor{dw, dbias} {
		AddRows(d.Context, sum, parts[i], parts[2], blocks)
	}
}
