package cpu

import "lockstep/kernels"

// ReLU2 is round(max(x, 0)^2).
func (d *Device) ReLU2(out, x kernels.Tensor) {
	mustShape("relu2", "out", out, x.Rows, x.Cols)
	to, in := d.matrix(out), d.matrix(x)
	d.eachRow(x.Rows, x.Cols, 1, func(from, end int, buf [][]float32) {
		for r := from; r < end; r++ {
			y := to.target(r, buf[0])
			for j, v := range in.load(r, buf[0]) {
				v = max(v, 0)
				y[j] = v * v
			}
			to.store(r, y)
		}
	})
}

// ReLU2Backward: dx = round(dout*(2*max(x, 0))).
func (d *Device) ReLU2Backward(dx, dout, x kernels.Tensor) {
	mustShape("relu2 backward", "dx", dx, x.Rows, x.Cols)
	mustShape("relu2 backward", "dout", dout, x.Rows, x.Cols)
	to, dy, in := d.matrix(dx), d.matrix(dout), d.matrix(x)
	d.eachRow(x.Rows, x.Cols, 2, func(from, end int, buf [][]float32) {
		for r := from; r < end; r++ {
			y, do := to.target(r, buf[0]), dy.load(r, buf[1])
			for j, v := range in.load(r, buf[0]) {
				y[j] = do[j] * float32(2*max(v, 0))
			}
			to.store(r, y)
		}
	})
}
