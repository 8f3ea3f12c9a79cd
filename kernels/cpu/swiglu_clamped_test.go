package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

var clamp = kernels.Clamp{Alpha: 1.702, Limit: 1.5}

var clampedOps = []rowOp{
	{name: "ClampedSwiGLU", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		gu, out := c.part(c.strided(c.n, 2*c.cols())), c.part(c.strided(c.n, c.cols()))
		d.ClampedSwiGLU(out, gu, clamp)
		return []kernels.Tensor{out}, nil
	}},
	{name: "ClampedSwiGLUBackward", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		gu, dout, dgu := c.part(c.strided(c.n, 2*c.cols())), c.part(c.strided(c.n, c.cols())),
			c.part(c.strided(c.n, 2*c.cols()))
		d.ClampedSwiGLUBackward(dgu, dout, gu, clamp)
		d.ClampedSwiGLUBackward(gu, dout, gu, clamp)
		return []kernels.Tensor{dgu, gu}, nil
	}},
}

func TestClampedSwiGLUIsTheDefinition(t *testing.T) {
	for _, d := range []*Device{newRowDevice(t, Auto, 2), newEx2hDevice(t)} {
		c := rowCase{seed: 61, dtype: kernels.F32}
		c.start()
		const rows, n = 7, 90
		gu, dout, out, dgu := c.strided(rows, 2*n), c.strided(rows, n), c.strided(rows, n), c.strided(rows, 2*n)
		d.ClampedSwiGLU(out, gu, clamp)
		d.ClampedSwiGLUBackward(dgu, dout, gu, clamp)
		clamped := 0
		for r := range rows {
			v, do := rowValues(gu.RowRange(r, r+1)), rowValues(dout.RowRange(r, r+1))
			y, grad := make([]float32, n), make([]float32, 2*n)
			for i := range n {
				g, u := min(v[i], clamp.Limit), max(min(v[n+i], clamp.Limit), -clamp.Limit)
				a := g * clamp.Alpha
				s := scalarSigmoid(d.def.Exp2.Func(), a)
				y[i] = float32(g*s) * (u + 1)
				if u == v[n+i] {
					grad[n+i] = do[i] * float32(g*s)
				}
				if g == v[i] {
					grad[i] = float32(do[i]*(u+1)) * float32(s*(1+float32(a*(1-s))))
				} else {
					clamped++
				}
			}
			wantBits(t, "out", out.RowRange(r, r+1), y)
			wantBits(t, "dgu", dgu.RowRange(r, r+1), grad)
		}
		if clamped < 20 || clamped > rows*n/2 {
			t.Errorf("%d of %d gates are clamped: the test shows less than it says", clamped, rows*n)
		}
	}
}

func TestClampedSwiGLUGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 62, dtype: kernels.F32}
	c.start()
	const rows, n = 3, 20
	gu, dout, dgu := c.f32(rows, 2*n), c.f32(rows, n), rowTensor(kernels.F32, rows, 2*n)
	d.ClampedSwiGLUBackward(dgu, dout, gu, clamp)
	dout64, alpha, limit := to64(dout), float64(clamp.Alpha), float64(clamp.Limit)
	checkGradient(t, "dgu", to64(gu), func(p []float64) float64 {
		loss := 0.0
		for r := range rows {
			for i := range n {
				g, u := min(p[r*2*n+i], limit), max(min(p[r*2*n+n+i], limit), -limit)
				loss += dout64[r*n+i] * (u + 1) * g / (1 + math.Exp(-alpha*g))
			}
		}
		return loss
	}, rowValues(dgu))
}

// NaN passes the clamp, so that the loss becomes NaN.
func TestClampedSwiGLUOfNaN(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	nan := float32(math.NaN())
	out, dgu := rowTensor(kernels.F32, 1, 2), rowTensor(kernels.F32, 1, 4)
	gu := kernels.Wrap([]float32{nan, 1, 1, nan}, 1, 4)
	d.ClampedSwiGLU(out, gu, clamp)
	d.ClampedSwiGLUBackward(dgu, kernels.Wrap([]float32{1, 1}, 1, 2), gu, clamp)
	for i, v := range append(out.F32s(), dgu.F32s()...) {
		if v == v && i != 2+3 { // du of the second column does not depend on its u
			t.Errorf("element %d is %v", i, v)
		}
	}
}
