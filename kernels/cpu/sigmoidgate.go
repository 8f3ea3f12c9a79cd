package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// SigmoidGate is as kernels.DeltaNet states it.
func (d *Device) SigmoidGate(out, x, gate kernels.Tensor) {
	const op = "sigmoid gate"
	mustShape(op, "out", out, x.Rows, x.Cols)
	mustGate(op, x, gate)
	to, in, gates, exp2 := d.matrix(out), d.matrix(x), d.matrix(gate), d.def.Exp2.Func()
	d.eachRow(x.Rows, x.Cols, 2, func(from, end int, buf [][]float32) {
		for r := from; r < end; r++ {
			v, z, y := in.load(r, buf[0]), gates.load(r, buf[1]), to.target(r, buf[0])
			if len(z) == 1 {
				d.vec.ScaleTo(y, v, sigmoid(exp2, z[0]))
			} else {
				for j, a := range z {
					y[j] = v[j] * sigmoid(exp2, a)
				}
			}
			to.store(r, y)
		}
	})
}

// SigmoidGateBackward is as kernels.DeltaNet states it.
func (d *Device) SigmoidGateBackward(dx, dgate, dout, x, gate kernels.Tensor) {
	const op = "sigmoid gate backward"
	mustShape(op, "dx", dx, x.Rows, x.Cols)
	mustShape(op, "dout", dout, x.Rows, x.Cols)
	mustGate(op, x, gate)
	mustGate(op, x, dgate)
	gx, gg, dy, in, gates, exp2 := d.matrix(dx), d.matrix(dgate), d.matrix(dout), d.matrix(x), d.matrix(gate), d.def.Exp2.Func()
	d.eachRow(x.Rows, x.Cols, 4, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			v, z, do, dz, y := in.load(r, buf[0]), gates.load(r, buf[1]), dy.load(r, buf[2]), gg.target(r, buf[3]), gx.target(r, buf[2])
			if len(z) == 1 {
				s := sigmoid(exp2, z[0])
				dz[0] = d.vec.TreeDot(do, v) * float32(s*(1-s))
				d.vec.ScaleTo(y, do, s)
			} else {
				for j, a := range z {
					s := sigmoid(exp2, a)
					dz[j] = float32(do[j]*v[j]) * float32(s*(1-s))
					y[j] = do[j] * s
				}
			}
			gg.store(r, dz)
			gx.store(r, y)
		}
	})
}

func mustGate(op string, x, gate kernels.Tensor) {
	if gate.Rows != x.Rows || gate.Cols != x.Cols && gate.Cols != 1 {
		panic(fmt.Sprintf("cpu: %s: %s of %s", op, gate, x))
	}
}
