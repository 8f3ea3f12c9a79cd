package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

const decayLo, decayHi = 0.2, 2.5

var decayOps = []rowOp{
	{name: "Decay", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		a, g, step := c.part(c.strided(c.n, c.cols())), c.part(c.f32(c.n, c.cols())), c.part(c.f32(c.n, c.cols()))
		d.Decay(g, step, kernels.DecayOperands{A: a, Rate: c.f32(1, c.cols()), Bias: c.f32(1, c.cols())}, decayLo,
			decayHi)
		return []kernels.Tensor{g, step}, nil
	}},
	{name: "DecayBackward", run: func(d *Device, c *rowCase) (rows, other []kernels.Tensor) {
		n := c.cols()
		a, da, frozen := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n))
		dg, dstep, g := c.part(c.f32(c.n, n)), c.part(c.f32(c.n, n)), c.part(c.f32(c.n, n))
		rate, bias, drate, dbias := c.f32(1, n), c.f32(1, n), c.f32(1, n), c.f32(1, n)
		d.DecayBackward(kernels.DecayOperands{A: da, Rate: drate, Bias: dbias}, dg, dstep, g,
			kernels.DecayOperands{A: a, Rate: rate, Bias: bias}, decayLo, decayHi, oneSegment(da))
		d.DecayBackward(kernels.DecayOperands{A: frozen}, dg, kernels.Tensor{}, g, kernels.DecayOperands{A: a,
			Rate: rate, Bias: bias}, decayLo,
			decayHi, oneSegment(da))
		return []kernels.Tensor{da, frozen}, []kernels.Tensor{drate, dbias}
	}},
}

func TestDecayIsTheDefinition(t *testing.T) {
	decayIsTheDefinition(t, newRowDevice(t, Auto, 2))
	decayIsTheDefinition(t, newEx2hDevice(t))
}

func decayIsTheDefinition(t *testing.T, d *Device) {
	t.Helper()
	c, mode := rowCase{seed: 41, dtype: kernels.F32}, d.def.Exp2
	c.start()
	const rows, n = 150, 5
	a, g, step, rate, bias := c.strided(rows, n), c.f32(rows, n), c.f32(rows, n), c.f32(1, n), c.f32(1, n)
	da, dg, dstep, drate, dbias := c.strided(rows, n), c.f32(rows, n), c.f32(rows, n), c.f32(1, n), c.f32(1, n)
	rates, biases := rowSum{total: rowValues(drate)}, rowSum{total: rowValues(dbias)}
	d.Decay(g, step, kernels.DecayOperands{A: a, Rate: rate, Bias: bias}, decayLo, decayHi)
	d.DecayBackward(kernels.DecayOperands{A: da, Rate: drate, Bias: dbias}, dg, dstep, g, kernels.DecayOperands{A: a,
		Rate: rate, Bias: bias}, decayLo, decayHi, sumSegments)
	for r := range rows {
		rates.row(r)
		biases.row(r)
		x, wantG, wantStep, wantDA := rowValues(a.RowRange(r, r+1)), make([]float32, n), make([]float32, n),
			make([]float32, n)
		for j := range n {
			s := mode.Softplus(x[j] + bias.F32s()[j])
			wantStep[j] = min(max(s, decayLo), decayHi)
			e := mode.Exp(rate.F32s()[j])
			wantG[j] = -float32(e * wantStep[j])
			if s == wantStep[j] {
				wantDA[j] = (dstep.F32s()[r*n+j] - float32(e*dg.F32s()[r*n+j])) * scalarSigmoid(mode.Func(),
					x[j]+bias.F32s()[j])
			}
			rates.add(j, dg.F32s()[r*n+j]*wantG[j])
			biases.add(j, wantDA[j])
		}
		wantBits(t, "g", g.RowRange(r, r+1), wantG)
		wantBits(t, "step", step.RowRange(r, r+1), wantStep)
		wantBits(t, "da", da.RowRange(r, r+1), wantDA)
	}
	rates.row(-1)
	biases.row(-1)
	wantBits(t, "drate", drate, rates.total)
	wantBits(t, "dbias", dbias, biases.total)
}

func TestDecayGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 42, dtype: kernels.F32}
	c.start()
	const rows, n = 6, 4
	a, g, step, rate, bias := c.f32(rows, n), c.f32(rows, n), c.f32(rows, n), c.f32(1, n), c.f32(1, n)
	da, dg, dstep := c.f32(rows, n), c.f32(rows, n), c.f32(rows, n)
	drate, dbias := kernels.Wrap(make([]float32, n), 1, n), kernels.Wrap(make([]float32, n), 1, n)
	d.Decay(g, step, kernels.DecayOperands{A: a, Rate: rate, Bias: bias}, decayLo, decayHi)
	d.DecayBackward(kernels.DecayOperands{A: da, Rate: drate, Bias: dbias}, dg, dstep, g, kernels.DecayOperands{A: a,
		Rate: rate, Bias: bias}, decayLo, decayHi, oneSegment(da))
	loss := func(a, rate, bias []float64) (sum float64) {
		for i := range a {
			s := min(max(math.Log1p(math.Exp(a[i]+bias[i%n])), decayLo), decayHi)
			sum += float64(dstep.F32s()[i])*s - float64(dg.F32s()[i])*math.Exp(rate[i%n])*s
		}
		return sum
	}
	checkGradient(t, "da", to64(a), func(p []float64) float64 { return loss(p, to64(rate), to64(bias)) }, rowValues(da))
	checkGradient(t, "drate", to64(rate), func(p []float64) float64 {
		return loss(to64(a), p, to64(bias))
	}, rowValues(drate))
	checkGradient(t, "dbias", to64(bias), func(p []float64) float64 {
		return loss(to64(a), to64(rate), p)
	}, rowValues(dbias))
}
