package cpu

import (
	"testing"

	"lockstep/kernels"
)

var addOps = []rowOp{
	{name: "Add", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		a, b, out := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols())),
			c.part(c.strided(c.n, c.cols()))
		other := c.part(c.strided(c.n, c.cols()))
		d.Add(out, a, b)
		d.Add(other, a, other)
		d.Add(a, a, b)
		return []kernels.Tensor{out, a, other}, nil
	}},
	{name: "Scale", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, out := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols()))
		d.Scale(out, x, 0.3)
		d.Scale(x, x, 3)
		return []kernels.Tensor{out, x}, nil
	}},
}

func TestAddValues(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 4, dtype: kernels.F32}
	c.start()
	a, b, out := c.strided(8, 50), c.strided(8, 50), c.strided(8, 50)
	x, y := rowValues(a), rowValues(b)
	sum, scaled := make([]float32, len(x)), make([]float32, len(x))
	for i := range x {
		sum[i], scaled[i] = x[i]+y[i], x[i]*0.7
	}
	d.Add(out, a, b)
	wantBits(t, "sum", out, sum)
	d.Scale(out, a, 0.7)
	wantBits(t, "product", out, scaled)
	mustPanic(t, "a sum of other shapes", func() { d.Add(out, a, b.RowRange(0, 7)) })
}
