//go:build cuda

package cuda

import "lockstep/kernels"

// RMSNorm: rstd[t] = 1/sqrt(tree(x*x)/n + eps), out = round((x*rstd)*w), over each row of x [T, n].
func (d *Device) RMSNorm(out, rstd, x, w kernels.Tensor, eps float32) {
	d.launch("rms_norm"+suffix(x), warps(x.Rows), warpThreads, 0, out, rstd, x, w, x.Rows, x.Cols, out.Stride, x.Stride, eps)
}

// RMSNormBackward adds to dx [T, n] and to dw F32 [1, n], which may be nil.
func (d *Device) RMSNormBackward(dx, dw, dy, x, rstd, w kernels.Tensor) {
	d.launch("rms_norm_backward"+suffix(x), warps(x.Rows), warpThreads, 0, dx, dy, x, rstd, w, x.Rows, x.Cols, dx.Stride, dy.Stride, x.Stride)
	if !dw.IsNil() {
		d.launch("rms_norm_weight"+suffix(x), [3]int{blocks(x.Cols, 32), 1, 1}, 32, 0, dw, dy, x, rstd, x.Rows, x.Cols, dy.Stride, x.Stride)
	}
}
