//go:build cuda

package cuda

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// RMSNorm: rstd[t] = 1/sqrt(tree(x*x)/n + eps), out = round((x*rstd)*w), over each row of x [T, n].
func (d *Device) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	d.launch("rms_norm"+suffix(x), warps(x.Rows), warpThreads, 0, out, rstd, x, w, x.Rows, x.Cols, out.Stride, x.Stride, norm.Eps, norm.PlusOne)
}

// normThreads is kThreads of norm.cu. Its blocks hold parts of partColumns columns: so many rows at a time for so many parts.
const normThreads, partColumns, mostParts = 256, 2048, 8

// RMSNormBackward adds to dx [T, n] and to dw F32 [1, n], which may be nil.
func (d *Device) RMSNormBackward(dx, dw, dy, x, rstd, w kernels.Tensor, norm kernels.Norm, packs []int32) {
	parts := 1
	for parts*partColumns < x.Cols {
		parts *= 2
	}
	if parts > mostParts {
		panic(kernels.Fault{Err: fmt.Errorf("the gradient of a norm on the GPU is written for rows of up to %d columns, not %d", mostParts*partColumns, x.Cols)})
	}
	shared := 4 * x.Cols * max(1, 2/parts)
	rows := kernels.RowBlocks(packs)
	d.sumRows(dw, len(rows)-1, func(n int, sums cu.DevicePtr) {
		d.launch(fmt.Sprintf("rms_norm_backward_%d%s", parts, suffix(x)), [3]int{n, 1, 1}, normThreads, shared, dx, sums, dy, x, rstd, w, stage(d, rows), x.Cols, dx.Stride, dy.Stride, x.Stride, norm.PlusOne)
	})
}

// sumRows runs a kernel of a block for each of n blocks of rows, which writes sums F32 [n, columns of dw] unless dw is nil, and adds them to dw.
func (d *Device) sumRows(dw kernels.Tensor, n int, run func(n int, sums cu.DevicePtr)) {
	if dw.IsNil() {
		run(n, 0)
		return
	}
	sums := d.workspace(4 * n * dw.Cols)
	run(n, sums)
	d.addBlocks(dw, sums, n)
}

// addBlocks adds sums F32 [n, columns of dw] to dw F32 [1, columns], the first first.
func (d *Device) addBlocks(dw kernels.Tensor, sums cu.DevicePtr, n int) {
	d.launch("add_blocks", [3]int{blocks(dw.Cols, 32), 1, 1}, normThreads, 0, dw, sums, n, dw.Cols)
}

// addRows adds parts F32 [rows, n] to dw F32 [1, n] as a sum over rows, by way of sums F32 [blocks, n].
func (d *Device) addRows(dw kernels.Tensor, parts, sums cu.DevicePtr, rows []int32) {
	n := len(rows) - 1
	d.launch("add_rows", [3]int{blocks(dw.Cols, 32), n, 1}, 32, 0, sums, parts, stage(d, rows), dw.Cols)
	d.addBlocks(dw, sums, n)
}
