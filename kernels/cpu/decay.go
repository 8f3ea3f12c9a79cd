package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Decay is as kernels.Recurrent states it. Heads are few: plain loops do.
func (d *Device) Decay(g, step kernels.Tensor, x kernels.DecayOperands, lo, hi float32) {
	const op = "decay"
	a, h := x.A, x.A.Cols
	mustShape(op, "g", g, a.Rows, h)
	mustShape(op, "step", step, a.Rows, h)
	in, gs, steps := d.matrix(a), d.matrix(g), d.matrix(step)
	e, shift := d.rates(op, x.Rate, h), vector(op, "bias", x.Bias, h)
	d.eachRow(a.Rows, h*softplusWork, 3, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			x, y, s := in.load(r, buf[0]), gs.target(r, buf[1]), steps.target(r, buf[2])
			for j, v := range x[:h] {
				s[j] = min(max(d.def.Exp2.Softplus(v+shift[j]), lo), hi)
				y[j] = -float32(e[j] * s[j])
			}
			gs.store(r, y)
			steps.store(r, s)
		}
	})
}

// softplusWork is about how many elementwise steps a softplus is worth.
const softplusWork = 16

// DecayBackward is as kernels.Recurrent states it.
func (d *Device) DecayBackward(dx kernels.DecayOperands, dg, dstep, g kernels.Tensor, x kernels.DecayOperands,
	lo, hi float32, segments []int32) {
	const op = "decay backward"
	a, da, drate, dbias, h := x.A, dx.A, dx.Rate, dx.Bias, x.A.Cols
	mustShape(op, "da", da, a.Rows, h)
	mustShape(op, "dg", dg, a.Rows, h)
	mustShape(op, "g", g, a.Rows, h)
	if drate.IsNil() != dbias.IsNil() {
		panic(fmt.Sprintf("cpu: %s: drate %s and dbias %s: want both or none", op, drate, dbias))
	}
	in, out, gs, dgs := d.matrix(a), d.matrix(da), d.matrix(g), d.matrix(dg)
	e, shift := d.rates(op, x.Rate, h), vector(op, "bias", x.Bias, h)
	zs, rates := make([]float32, a.Rows*h), make([]float32, a.Rows*h)
	exp2 := d.def.Exp2.Func()
	d.eachRow(a.Rows, h*softplusWork, 3, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			x, dy, z := in.load(r, buf[0]), dgs.load(r, buf[1]), zs[r*h:][:h]
			for j, v := range x[:h] {
				z[j] = -float32(e[j] * dy[j])
				if !dstep.IsNil() {
					z[j] = dstep.F32s()[r*dstep.Stride+j] - float32(e[j]*dy[j])
				}
				z[j] *= sigmoid(exp2, v+shift[j])
				if s := d.def.Exp2.Softplus(v + shift[j]); s < lo || s > hi {
					z[j] = 0
				}
				rates[r*h+j] = dy[j] * gs.load(r, buf[2])[j]
			}
			out.storePart(r, 0, z)
		}
	})
	if !drate.IsNil() {
		mustSegments(op, segments, a.Rows)
		d.addRows(d.rowSums(op, "drate", drate, h, segments), rates, segments)
		d.addRows(d.rowSums(op, "dbias", dbias, h, segments), zs, segments)
	}
}

// rates is exp(rate) of each head.
func (d *Device) rates(op string, rate kernels.Tensor, heads int) []float32 {
	e := make([]float32, heads)
	for j, v := range vector(op, "rate", rate, heads) {
		e[j] = d.def.Exp2.Exp(v)
	}
	return e
}
