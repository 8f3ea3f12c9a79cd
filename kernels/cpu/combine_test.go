package cpu

import (
	"testing"

	"lockstep/kernels"
)

// rowsOf is a permutation of n*k rows, [n, k].
func (c *rowCase) rowsOf(n, k int) kernels.Tensor {
	t := rowTensor(kernels.I32, n, k)
	for at, row := range c.rng.Perm(n * k) {
		t.I32s()[at] = int32(row)
	}
	return t
}

var combineOps = []rowOp{
	{name: "Combine", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		k, n := 1+c.size, c.cols()
		y, w, rowOf := c.strided(c.n*k, n), c.part(c.f32(c.n, k)), c.part(c.rowsOf(c.n, k))
		out, plain := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n))
		d.Combine(out, kernels.Tensor{}, y, w, rowOf)
		d.Combine(plain, kernels.Tensor{}, y, kernels.Tensor{}, rowOf)
		if c.dtype == kernels.BF16 { // a residual is added to what is rounded: see TestCombineAddsResidual
			return []kernels.Tensor{out, plain}, nil
		}
		residual := c.part(c.strided(c.n, n))
		d.Combine(residual, residual, y, w, rowOf)
		return []kernels.Tensor{out, plain, residual}, nil
	}},
	{name: "CombineBackward", uncut: true, run: func(d *Device, c *rowCase) (rows, other []kernels.Tensor) {
		k, n := 1+c.size, c.cols()
		y, w, rowOf := c.strided(c.n*k, n), c.f32(c.n, k), c.rowsOf(c.n, k)
		dout, dy, dw := c.strided(c.n, n), c.strided(c.n*k, n), c.f32(c.n, k)
		d.CombineBackward(dy, dw, dout, y, w, rowOf, kernels.AllRows)
		return nil, []kernels.Tensor{dy, dw}
	}},
}

func TestCombineIsTheDefinition(t *testing.T) {
	combineIsTheDefinition(t, kernels.Default(), func(x float32) float32 { return x })
	combineIsTheDefinition(t, roundedDefinition(), kernels.NearestBF16)
}

// combineIsTheDefinition compares with the sum whose products and partial sums are rounded.
func combineIsTheDefinition(t *testing.T, def kernels.Definition, round func(float32) float32) {
	t.Helper()
	d := newDevice(t, def, Auto, 2)
	c := rowCase{seed: 51, dtype: kernels.F32}
	c.start()
	const tokens, k, n = 20, 4, 130
	y, w, rowOf, out := c.strided(tokens*k, n), c.f32(tokens, k), c.rowsOf(tokens, k), c.strided(tokens, n)
	dout, dy, dw := c.strided(tokens, n), c.strided(tokens*k, n), c.f32(tokens, k)
	d.Combine(out, kernels.Tensor{}, y, w, rowOf)
	d.CombineBackward(dy, dw, dout, y, w, rowOf, kernels.AllRows)
	for r := range tokens {
		sum, do := make([]float32, n), rowValues(dout.RowRange(r, r+1))
		for slot := range k {
			row, a := int(rowOf.I32s()[r*k+slot]), w.F32s()[r*k+slot]
			products, scaled := make([]float32, n), make([]float32, n)
			for i, v := range rowValues(y.RowRange(row, row+1)) {
				sum[i] = round(sum[i] + round(a*v))
				products[i], scaled[i] = do[i]*v, a*do[i]
			}
			wantBits(t, "dy", dy.RowRange(row, row+1), scaled)
			wantBits(t, "dweights", dw.RowRange(r, r+1).ColRange(slot, slot+1), []float32{scalarTree(products)})
		}
		wantBits(t, "out", out.RowRange(r, r+1), sum)
	}
}

// Combine with a residual is Combine, rounded to storage, then Add, where it may write over the residual too.
func TestCombineAddsResidual(t *testing.T) {
	for _, def := range []kernels.Definition{kernels.Default(), roundedDefinition()} {
		d := newDevice(t, def, Auto, 2)
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			c := rowCase{seed: 57, dtype: dtype}
			c.start()
			const tokens, k, n = 37, 3, 130
			y, w, rowOf := c.strided(tokens*k, n), c.f32(tokens, k), c.rowsOf(tokens, k)
			residual, want, got := c.strided(tokens, n), c.strided(tokens, n), c.strided(tokens, n)
			for _, weights := range []kernels.Tensor{w, {}} {
				d.Combine(want, kernels.Tensor{}, y, weights, rowOf)
				d.Add(want, residual, want)
				d.Combine(got, residual, y, weights, rowOf)
				d.Combine(residual, residual, y, weights, rowOf)
				for r := range tokens {
					wantBits(t, "sum", got.RowRange(r, r+1), rowValues(want.RowRange(r, r+1)))
					wantBits(t, "sum in place", residual.RowRange(r, r+1), rowValues(want.RowRange(r, r+1)))
				}
			}
		}
	}
}

// An owner of some rows gets the gradients that one of all rows gets, by row.
func TestCombineBackwardOfOwner(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		c := rowCase{seed: 53, dtype: dtype}
		c.start()
		const tokens, k, n, from, to = 40, 3, 70, 17, 90
		y, w, rowOf, dout := c.strided(tokens*k, n), c.f32(tokens, k), c.rowsOf(tokens, k), c.strided(tokens, n)
		dy, dw := c.strided(tokens*k, n), c.f32(tokens, k)
		d.CombineBackward(dy, dw, dout, y, w, rowOf, kernels.AllRows)
		part, weights := c.strided(to-from, n), c.f32(to-from, 1)
		d.CombineBackward(part, weights, dout, y.RowRange(from, to), w, rowOf, from)
		for p, row := range rowOf.I32s() {
			if i := int(row) - from; i >= 0 && i < to-from {
				wantBits(t, "dy", part.RowRange(i, i+1), rowValues(dy.RowRange(int(row), int(row)+1)))
				wantBits(t, "dweights", weights.RowRange(i, i+1), dw.F32s()[p:p+1])
			}
		}
		mustPanic(t, "a row that does not exist", func() {
			rowOf.I32s()[1] = tokens * k
			d.CombineBackward(part, weights, dout, y.RowRange(from, to), w, rowOf, from)
		})
	}
}

func TestCombineGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 52, dtype: kernels.F32}
	c.start()
	const tokens, k, n = 5, 3, 12
	y, w, rowOf, dout := c.f32(tokens*k, n), c.f32(tokens, k), c.rowsOf(tokens, k), c.f32(tokens, n)
	dy, dw := c.f32(tokens*k, n), c.f32(tokens, k)
	d.CombineBackward(dy, dw, dout, y, w, rowOf, kernels.AllRows)
	y64, w64, dout64 := to64(y), to64(w), to64(dout)
	loss := func(y, w []float64) float64 {
		sum := 0.0
		for at, row := range rowOf.I32s() {
			for i := range n {
				sum += dout64[at/k*n+i] * w[at] * y[int(row)*n+i]
			}
		}
		return sum
	}
	checkGradient(t, "dy", y64, func(p []float64) float64 { return loss(p, w64) }, rowValues(dy))
	checkGradient(t, "dweights", w64, func(p []float64) float64 { return loss(y64, p) }, rowValues(dw))
}
