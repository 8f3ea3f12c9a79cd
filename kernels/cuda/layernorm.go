//go:build cuda

package cuda

import "lockstep/kernels"

// LayerNorm: mean = tree(x)/n, c = x - mean, rstd = 1/sqrt(tree(c*c)/n + eps), out = round(c*rstd*w + bias), over each row of x [T, n]; w, bias [1, n]. out may be x.
func (d *Device) LayerNorm(out, x, w, bias kernels.Tensor, eps float32) {
	d.launch("layer_norm"+suffix(x), warps(x.Rows), warpThreads, 0, out, x, w, bias, x.Rows, x.Cols, out.Stride, x.Stride, eps)
}
