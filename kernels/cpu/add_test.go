package cpu

import (
	"slices"
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

// Parts are added one after the other: another order has other bits.
func TestAccumulate(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	const n = 40000
	dst, parts := make([]float32, n), make([]float32, 3*n)
	for i := range n {
		parts[i], parts[n+i], parts[2*n+i] = 1, 1e8, -1e8
	}
	d.Accumulate(kernels.Wrap(dst, 1, n), kernels.Wrap(parts, 3, n))
	for i, v := range dst {
		if v != 0 {
			t.Fatalf("element %d: (1 + 1e8) - 1e8 = %v, want 0; 1 is the sum in the opposite order", i, v)
		}
	}
	d.Accumulate(kernels.Wrap(dst[:2], 1, 2), kernels.Wrap(parts[:2], 1, 2),
		kernels.PartSum{Dst: kernels.Wrap(dst[5:8], 1, 3), Parts: kernels.Wrap(parts[n-3:n+3], 2, 3)})
	if want := []float32{1, 1, 0, 0, 0, 1 + 1e8, 1 + 1e8, 1 + 1e8, 0}; !slices.Equal(dst[:9], want) {
		t.Errorf("two sums are %v, want %v", dst[:9], want)
	}
	clear(dst)
	d.Accumulate(kernels.Wrap(dst[:3], 1, 3), kernels.Wrap(parts[:0], 0, 3))
	if dst[0] != 0 {
		t.Error("no parts change the sum")
	}
	mustPanic(t, "parts of another width", func() {
		d.Accumulate(kernels.Wrap(dst[:3], 1, 3), kernels.Wrap(parts, 3, n))
	})
}
