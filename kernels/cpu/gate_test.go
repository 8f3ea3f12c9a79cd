package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

var gateOps = []rowOp{
	{name: "SigmoidGate", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, full, one := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, 1))
		a, b := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols()))
		d.SigmoidGate(a, x, full)
		d.SigmoidGate(b, x, one)
		d.SigmoidGate(x, x, full)
		return []kernels.Tensor{a, b, x}, nil
	}},
	{name: "SigmoidGateBackward", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, full, one, dout := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols())),
			c.part(c.strided(c.n, 1)), c.part(c.strided(c.n, c.cols()))
		dx, dfull, done := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, 1))
		d.SigmoidGateBackward(dx, dfull, dout, x, full)
		d.SigmoidGateBackward(dout, done, dout, x, one)
		return []kernels.Tensor{dx, dfull, dout, done}, nil
	}},
	{name: "ReLU2", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, out := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols()))
		d.ReLU2(out, x)
		d.ReLU2(x, x)
		return []kernels.Tensor{out, x}, nil
	}},
	{name: "ReLU2Backward", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, dout, dx := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols())),
			c.part(c.strided(c.n, c.cols()))
		d.ReLU2Backward(dx, dout, x)
		d.ReLU2Backward(x, dout, x)
		return []kernels.Tensor{dx, x}, nil
	}},
}

func TestGatesAreTheDefinition(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 46, dtype: kernels.F32}
	c.start()
	const rows, n = 7, 90
	x, gate, one, dout := c.strided(rows, n), c.strided(rows, n), c.strided(rows, 1), c.strided(rows, n)
	out, byRow, dx, dgate, dxRow, done := c.strided(rows, n), c.strided(rows, n), c.strided(rows, n),
		c.strided(rows, n), c.strided(rows, n), c.strided(rows, 1)
	square, dsquare := c.strided(rows, n), c.strided(rows, n)
	d.SigmoidGate(out, x, gate)
	d.SigmoidGate(byRow, x, one)
	d.SigmoidGateBackward(dx, dgate, dout, x, gate)
	d.SigmoidGateBackward(dxRow, done, dout, x, one)
	d.ReLU2(square, x)
	d.ReLU2Backward(dsquare, dout, x)
	for r := range rows {
		row := func(m kernels.Tensor) []float32 { return rowValues(m.RowRange(r, r+1)) }
		xs, zs, do, s1 := row(x), row(gate), row(dout), scalarSigmoid(kernels.Exp2, row(one)[0])
		want := make([][]float32, 6)
		var products []float32
		for i, v := range xs {
			s, relu := scalarSigmoid(kernels.Exp2, zs[i]), max(v, 0)
			products = append(products, do[i]*v)
			for j, y := range []float32{v * s, v * s1, do[i] * s, float32(do[i]*v) * float32(s*(1-s)), do[i] * s1,
				relu * relu} {
				want[j] = append(want[j], y)
			}
			if got, slope := row(dsquare)[i], do[i]*float32(2*relu); got != slope {
				t.Fatalf("relu2: row %d column %d: %v, want %v", r, i, got, slope)
			}
		}
		for j, m := range []kernels.Tensor{out, byRow, dx, dgate, dxRow, square} {
			wantBits(t, []string{"out", "by row", "dx", "dgate", "dx by row", "relu2"}[j], m.RowRange(r, r+1), want[j])
		}
		wantBits(t, "dgate by row", done.RowRange(r, r+1), []float32{scalarTree(products) * float32(s1*(1-s1))})
	}
}

func TestGateGradients(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 47, dtype: kernels.F32}
	c.start()
	const rows, n = 4, 6
	x, dout, dx := c.f32(rows, n), c.f32(rows, n), c.f32(rows, n)
	do := to64(dout)
	for _, wide := range []int{1, n} {
		gate, dgate := c.f32(rows, wide), c.f32(rows, wide)
		d.SigmoidGateBackward(dx, dgate, dout, x, gate)
		loss := func(x, z []float64) (sum float64) {
			for i, v := range x {
				sum += do[i] * v / (1 + math.Exp(-z[i*wide/n]))
			}
			return sum
		}
		checkGradient(t, "dx", to64(x), func(p []float64) float64 { return loss(p, to64(gate)) }, rowValues(dx))
		checkGradient(t, "dgate", to64(gate), func(p []float64) float64 { return loss(to64(x), p) }, rowValues(dgate))
	}
	d.ReLU2Backward(dx, dout, x)
	checkGradient(t, "relu2", to64(x), func(p []float64) (sum float64) {
		for i, v := range p {
			sum += do[i] * max(v, 0) * max(v, 0)
		}
		return sum
	}, rowValues(dx))
}
