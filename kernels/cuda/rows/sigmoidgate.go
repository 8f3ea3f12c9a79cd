//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// SigmoidGate: out = round(x*sigm(gate)); x, out [R, n], gate [R, n] or [R, 1]. out may be x.
func (d *Ops) SigmoidGate(out, x, gate kernels.Tensor) {
	launchSigmoidGate(d.Context, driver.Suffix(x), driver.ElementGrid(x.Rows, x.Cols), driver.ElementThreads, 0, out, x,
		gate, x.Rows, x.Cols, out.Stride, x.Stride, gate.Stride, driver.Flag(gate.Cols == 1))
}

// SigmoidGateBackward writes dx, which may be dout, and dgate of the gate's shape.
func (d *Ops) SigmoidGateBackward(dx, dgate, dout, x, gate kernels.Tensor) {
	kernel, grid, threads := "sigmoid_gate_backward", driver.ElementGrid(x.Rows, x.Cols), driver.ElementThreads
	if gate.Cols == 1 {
		kernel, grid, threads = "sigmoid_gate_one_backward", driver.WarpGrid(x.Rows), driver.WarpThreads
	}
	launchSigmoidGateBackward(d.Context, kernel+driver.Suffix(x), grid, threads, 0, dx, dgate, dout, x, gate, x.Rows,
		x.Cols, dx.Stride, dgate.Stride, dout.Stride, x.Stride, gate.Stride)
}
