package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

var swigluOps = []rowOp{
	{name: "SwiGLU", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		gu, out := c.part(c.strided(c.n, 2*c.cols())), c.part(c.strided(c.n, c.cols()))
		d.SwiGLU(out, gu)
		return []kernels.Tensor{out}, nil
	}},
	{name: "SwiGLUBackward", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		gu, dout, dgu := c.part(c.strided(c.n, 2*c.cols())), c.part(c.strided(c.n, c.cols())),
			c.part(c.strided(c.n, 2*c.cols()))
		d.SwiGLUBackward(dgu, dout, gu)
		d.SwiGLUBackward(gu, dout, gu)
		return []kernels.Tensor{dgu, gu}, nil
	}},
}

func scalarSigmoid(exp2 func(float32) float32, x float32) float32 {
	e := exp2(float32(float32(-math.Abs(float64(x))) * kernels.Log2E))
	if x >= 0 {
		return 1 / (1 + e)
	}
	return e / (1 + e)
}

func TestSwiGLUIsTheDefinition(t *testing.T) {
	swigluIsTheDefinition(t, newRowDevice(t, Auto, 2))
	swigluIsTheDefinition(t, newEx2hDevice(t))
}

func swigluIsTheDefinition(t *testing.T, d *Device) {
	t.Helper()
	c := rowCase{seed: 21, dtype: kernels.F32}
	c.start()
	const rows, n = 7, 90
	gu, dout, out, dgu := c.strided(rows, 2*n), c.strided(rows, n), c.strided(rows, n), c.strided(rows, 2*n)
	d.SwiGLU(out, gu)
	d.SwiGLUBackward(dgu, dout, gu)
	for r := range rows {
		v, do := rowValues(gu.RowRange(r, r+1)), rowValues(dout.RowRange(r, r+1))
		y, grad := make([]float32, n), make([]float32, 2*n)
		for i := range n {
			g, u := v[i], v[n+i]
			s := scalarSigmoid(d.def.Exp2.Func(), g)
			y[i] = float32(g*s) * u
			grad[n+i] = do[i] * float32(g*s)
			grad[i] = float32(do[i]*u) * float32(s*(1+float32(g*(1-s))))
		}
		wantBits(t, "out", out.RowRange(r, r+1), y)
		wantBits(t, "dgu", dgu.RowRange(r, r+1), grad)
	}
}

func TestSwiGLUGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 22, dtype: kernels.F32}
	c.start()
	const rows, n = 3, 20
	gu, dout, dgu := c.f32(rows, 2*n), c.f32(rows, n), rowTensor(kernels.F32, rows, 2*n)
	d.SwiGLUBackward(dgu, dout, gu)
	dout64 := to64(dout)
	checkGradient(t, "dgu", to64(gu), func(p []float64) float64 {
		loss := 0.0
		for r := range rows {
			for i := range n {
				g, u := p[r*2*n+i], p[r*2*n+n+i]
				loss += dout64[r*n+i] * u * g / (1 + math.Exp(-g))
			}
		}
		return loss
	}, rowValues(dgu))
}
