//go:build cuda

package cuda

import "lockstep/kernels"

// RMSNorm: rstd[t] = 1/sqrt(tree(x*x)/n + eps), out = round((x*rstd)*w), over each row of x [T, n].
func (d *Device) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	d.launch("rms_norm"+suffix(x), warps(x.Rows), warpThreads, 0, out, rstd, x, w, x.Rows, x.Cols, out.Stride, x.Stride, norm.Eps, norm.PlusOne)
}

// RMSNormBackward adds to dx [T, n] and to dw F32 [1, n], which may be nil.
func (d *Device) RMSNormBackward(dx, dw, dy, x, rstd, w kernels.Tensor, norm kernels.Norm, packs []int32) {
	d.launch("rms_norm_backward"+suffix(x), warps(x.Rows), warpThreads, 0, dx, dy, x, rstd, w, x.Rows, x.Cols, dx.Stride, dy.Stride, x.Stride, norm.PlusOne)
	if dw.IsNil() {
		return
	}
	rows := kernels.RowBlocks(packs)
	n := len(rows) - 1
	sums := d.workspace(4 * n * x.Cols)
	d.launch("rms_norm_blocks"+suffix(x), [3]int{blocks(x.Cols, elementThreads), n, 1}, elementThreads, 0, sums, dy, x, rstd, stage(d, rows), x.Cols, dy.Stride, x.Stride)
	d.launch("add_blocks", [3]int{blocks(x.Cols, 32), 1, 1}, 32, 0, dw, sums, n, x.Cols)
}
