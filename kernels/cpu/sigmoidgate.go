package cpu

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

// SigmoidGate is as kernels.DeltaNet states it.
func (d *Device) SigmoidGate(out, x, gate kernels.Tensor) {
	const op = "sigmoid gate"
	mustShape(op, "out", out, x.Rows, x.Cols)
	mustGate(op, x, gate)
	to, in, gates := d.matrix(out), d.matrix(x), d.matrix(gate)
	d.eachRow(x.Rows, x.Cols, 3, func(from, end int, buf [][]float32) {
		for r := from; r < end; r++ {
			v, y, s := in.load(r, buf[0]), to.target(r, buf[0]), d.sigmoids(buf[2], gates.load(r, buf[1]))
			if len(s) == 1 {
				d.vec.ScaleTo(y, v, s[0])
			} else {
				d.vec.Mul(y, v, s)
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
	gx, gg, dy, in, gates := d.matrix(dx), d.matrix(dgate), d.matrix(dout), d.matrix(x), d.matrix(gate)
	d.eachRow(x.Rows, x.Cols, 5, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			v, do, dz, y := in.load(r, buf[0]), dy.load(r, buf[2]), gg.target(r, buf[3]), gx.target(r, buf[2])
			s := d.sigmoids(buf[4], gates.load(r, buf[1]))
			if len(s) == 1 {
				dz[0] = d.vec.TreeDot(do, v) * float32(s[0]*(1-s[0]))
				d.vec.ScaleTo(y, do, s[0])
			} else {
				for j, a := range s {
					dz[j] = float32(do[j]*v[j]) * float32(a*(1-a))
				}
				d.vec.Mul(y, do, s)
			}
			gg.store(r, dz)
			gx.store(r, y)
		}
	})
}

// sigmoids is sigm(z) of a row, in dst.
func (d *Device) sigmoids(dst, z []float32) []float32 {
	dst = dst[:len(z)]
	for i, v := range z {
		dst[i] = float32(math.Abs(float64(v)))
	}
	d.vec.Exp2Sub(dst, dst, -kernels.Log2E, 0)
	for i, v := range z {
		if e := dst[i]; v >= 0 {
			dst[i] = 1 / (1 + e)
		} else {
			dst[i] = e / (1 + e)
		}
	}
	return dst
}

func mustGate(op string, x, gate kernels.Tensor) {
	if gate.Rows != x.Rows || gate.Cols != x.Cols && gate.Cols != 1 {
		panic(fmt.Sprintf("cpu: %s: %s of %s", op, gate, x))
	}
}
