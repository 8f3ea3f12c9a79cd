package cpu

import (
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
)

// ropeHeads is the number of heads and their length for a case.
func (c *rowCase) ropeHeads() (heads, dim int) {
	dims := []int{2, 16, 32, 64, 128}
	return 1 + c.size%3, dims[c.size]
}

// rope is tables for heads of dim columns of which 2*pairs are rotated.
func (c *rowCase) rope(positions, dim, pairs int) kernels.Rope {
	cos, sin := c.f32(positions, pairs), c.f32(positions, pairs)
	for i := range cos.F32s() {
		a := c.rng.Float64() * 6.3
		cos.F32s()[i], sin.F32s()[i] = float32(math.Cos(a)), float32(math.Sin(a))
	}
	return kernels.Rope{Cos: cos, Sin: sin, HeadDim: dim}
}

// ropes are the ways that heads of dim columns are rotated: all, their first columns, some columns inside, and those in
// neighbouring pairs.
func (c *rowCase) ropes(positions, dim int) []kernels.Rope {
	all := []kernels.Rope{c.rope(positions, dim, dim/2)}
	if dim >= 16 {
		inside := c.rope(positions, dim, dim/4)
		inside.First = dim/2 - 3
		all = append(all, c.rope(positions, dim, dim/4), inside)
	}
	for _, r := range all {
		r.Interleaved = true
		all = append(all, r)
	}
	return all
}

// ropePair is the columns of pair i.
func ropePair(r kernels.Rope, i int) (a, b int) {
	if r.Interleaved {
		return r.First + 2*i, r.First + 2*i + 1
	}
	return r.First + i, r.First + i + r.Cos.Cols
}

var ropeOps = []rowOp{
	{name: "HeadNormRope", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		heads, dim := c.ropeHeads()
		n := heads * dim
		positions, w := c.partOf(c.ints(c.n, 13)), c.weight(1, dim)
		for _, rope := range c.ropes(13, dim) {
			x, plain := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n))
			d.HeadNormRope(plain, kernels.Tensor{}, x, kernels.Tensor{}, positions, rope, kernels.Norm{})
			rows = append(rows, plain)
			if rope.Interleaved {
				d.HeadNormRope(x, kernels.Tensor{}, x, kernels.Tensor{}, positions, rope, kernels.Norm{})
				rows = append(rows, x)
				continue
			}
			out, rstd := c.part(c.strided(c.n, n)), c.part(c.f32(c.n, heads))
			d.HeadNormRope(out, rstd, x, w, positions, rope, kernels.Norm{Eps: 1e-6})
			d.HeadNormRope(x, rstd, x, w, positions, rope, kernels.Norm{Eps: 1e-6, PlusOne: true})
			rows = append(rows, out, x, rstd)
		}
		return rows, nil
	}},
	{name: "HeadNormRopeBackward", run: func(d *Device, c *rowCase) (rows, other []kernels.Tensor) {
		heads, dim := c.ropeHeads()
		n := heads * dim
		positions, w := c.partOf(c.ints(c.n, 13)), c.weight(1, dim)
		for _, rope := range c.ropes(13, dim) {
			x, dout, plain := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n))
			d.HeadNormRopeBackward(plain, kernels.Tensor{}, dout, x, kernels.Tensor{}, kernels.Tensor{}, positions,
				rope, kernels.Norm{}, oneSegment(plain))
			rows = append(rows, plain)
			if rope.Interleaved {
				continue
			}
			dx, rstd, dw := c.part(c.strided(c.n, n)), c.part(c.f32(c.n, heads)), c.f32(1, dim)
			d.HeadNormRopeBackward(dx, kernels.Tensor{}, dout, x, rstd, w, positions, rope, kernels.Norm{PlusOne: true},
				oneSegment(dx))
			d.HeadNormRopeBackward(dout, dw, dout, x, rstd, w, positions, rope, kernels.Norm{}, oneSegment(dout))
			rows, other = append(rows, dx, dout), append(other, dw)
		}
		return rows, other
	}},
}

func TestHeadNormRopeIsTheDefinition(t *testing.T) {
	for _, def := range []kernels.Definition{kernels.Default(), roundedDefinition()} {
		d := newDevice(t, def, Auto, 2)
		c := rowCase{seed: 11, dtype: kernels.F32}
		c.start()
		for _, rope := range c.ropes(9, 64) {
			for _, norm := range []*kernels.Norm{nil, {Eps: 1e-6}, {Eps: 1e-3, PlusOne: true}} {
				if norm == nil || !rope.Interleaved {
					ropeIsTheDefinition(t, d, &c, rope, norm)
				}
			}
		}
	}
}

// ropeIsTheDefinition compares with the formulas, element by element; norm nil: none.
func ropeIsTheDefinition(t *testing.T, d *Device, c *rowCase, rope kernels.Rope, norm *kernels.Norm) {
	t.Helper()
	const rows, heads, dim = 150, 3, 64
	x, out, dout, dx := c.strided(rows, heads*dim), c.strided(rows, heads*dim), c.strided(rows, heads*dim),
		c.strided(rows, heads*dim)
	positions := c.ints(rows, 9)
	var rstd, w, dw kernels.Tensor
	var ws []float32
	settings, sum := kernels.Norm{}, rowSum{total: make([]float32, dim)}
	if norm != nil {
		rstd, w, dw, settings = c.f32(rows, heads), c.weight(1, dim), c.f32(1, dim), *norm
		ws, sum.total = plusOne(rowValues(w), settings), rowValues(dw)
	}
	d.HeadNormRope(out, rstd, x, w, positions, rope, settings)
	d.HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions, rope, settings, sumSegments)
	for r := range rows {
		sum.row(r)
		p := int(positions.I32s()[r]) * rope.Cos.Cols
		cos, sin := rope.Cos.F32s()[p:], rope.Sin.F32s()[p:]
		for h := range heads {
			from, to := h*dim, (h+1)*dim
			y, dz := rowValues(x.RowRange(r, r+1).ColRange(from, to)),
				rowValues(dout.RowRange(r, r+1).ColRange(from, to))
			xs := slices.Clone(y)
			rs := scalarRStd(xs, settings.Eps)
			for i := range y {
				if norm != nil {
					y[i] = scalarNorm(d.def, settings, xs[i], rs, ws[i])
				}
			}
			for i := range rope.Cos.Cols {
				a, b := ropePair(rope, i)
				y[a], y[b] = float32(y[a]*cos[i])-float32(y[b]*sin[i]), float32(y[b]*cos[i])+float32(y[a]*sin[i])
				dz[a], dz[b] = float32(dz[a]*cos[i])+float32(dz[b]*sin[i]), float32(dz[b]*cos[i])-float32(dz[a]*sin[i])
			}
			grad := dz
			if norm != nil {
				var xh []float32
				grad, xh = scalarNormGrad(dz, xs, ws, rs)
				for i := range xs {
					sum.addHead(h, i, dz[i]*xh[i])
				}
				wantBits(t, "rstd", rstd.RowRange(r, r+1).ColRange(h, h+1), []float32{rs})
			}
			wantBits(t, "out", out.RowRange(r, r+1).ColRange(from, to), y)
			wantBits(t, "dx", dx.RowRange(r, r+1).ColRange(from, to), grad)
		}
	}
	if sum.row(-1); norm != nil {
		wantBits(t, "dw", dw, sum.total)
	}
}

// plusOne is the weight that multiplies.
func plusOne(w []float32, n kernels.Norm) []float32 {
	for i := range w {
		if n.PlusOne {
			w[i]++
		}
	}
	return w
}

// rope64 is the loss sum(dout * HeadNormRope(x)) in float64, w nil for no norm.
func rope64(x, w, dout []float64, heads int, positions []int32, rope kernels.Rope, eps float64) float64 {
	dim, loss := rope.HeadDim, 0.0
	for at := 0; at < len(x); at += dim {
		z := append([]float64(nil), x[at:at+dim]...)
		if w != nil {
			ss := 0.0
			for _, v := range z {
				ss += v * v
			}
			for i := range z {
				z[i] *= w[i] / math.Sqrt(ss/float64(dim)+eps)
			}
		}
		p := int(positions[at/(heads*dim)]) * rope.Cos.Cols
		for i := range rope.Cos.Cols {
			c, s := float64(rope.Cos.F32s()[p+i]), float64(rope.Sin.F32s()[p+i])
			a, b := ropePair(rope, i)
			z[a], z[b] = z[a]*c-z[b]*s, z[b]*c+z[a]*s
		}
		for i, v := range z {
			loss += dout[at+i] * v
		}
	}
	return loss
}

func TestHeadNormRopeGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 12, dtype: kernels.F32}
	c.start()
	const rows, heads, dim, eps = 4, 2, 16, 1e-5
	for _, rope := range c.ropes(20, dim) {
		x, w, dout, rstd := c.f32(rows, heads*dim), c.f32(1, dim), c.f32(rows, heads*dim), c.f32(rows, heads)
		dx, positions := rowTensor(kernels.F32, rows, heads*dim), c.ints(rows, 20)
		x64, w64, dout64, at := to64(x), to64(w), to64(dout), positions.I32s()
		d.HeadNormRopeBackward(dx, kernels.Tensor{}, dout, x, kernels.Tensor{}, kernels.Tensor{}, positions, rope,
			kernels.Norm{}, oneSegment(dx))
		checkGradient(t, "dx without norm", x64, func(p []float64) float64 {
			return rope64(p, nil, dout64, heads, at, rope, eps)
		}, rowValues(dx))
		if rope.Interleaved {
			continue
		}
		loss := func(x, w []float64) float64 {
			one := slices.Clone(w)
			for i := range one {
				one[i]++
			}
			return rope64(x, one, dout64, heads, at, rope, eps)
		}
		dw, norm := rowTensor(kernels.F32, 1, dim), kernels.Norm{Eps: eps, PlusOne: true}
		d.HeadNormRope(rowTensor(kernels.F32, rows, heads*dim), rstd, x, w, positions, rope, norm)
		d.HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions, rope, norm, oneSegment(dx))
		checkGradient(t, "dx", x64, func(p []float64) float64 { return loss(p, w64) }, rowValues(dx))
		checkGradient(t, "dw", w64, func(p []float64) float64 { return loss(x64, p) }, rowValues(dw))
	}
}

func TestHeadNormRopeRefuses(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	c := rowCase{seed: 13, dtype: kernels.F32}
	c.start()
	x, out, rope, none := c.f32(2, 32), c.f32(2, 32), c.rope(4, 16, 8), kernels.Tensor{}
	at := kernels.WrapI32([]int32{0, 1})
	mustPanic(t, "a position beyond the tables", func() {
		d.HeadNormRope(out, none, x, none, kernels.WrapI32([]int32{0, 4}), rope, kernels.Norm{})
	})
	mustPanic(t, "heads that do not divide the row", func() {
		d.HeadNormRope(out.ColRange(0, 24), none, x.ColRange(0, 24), none, at, rope, kernels.Norm{})
	})
	mustPanic(t, "a gradient of no weight", func() {
		d.HeadNormRopeBackward(out, c.f32(1, 16), out, x, none, none, at, rope, kernels.Norm{}, oneSegment(out))
	})
	rope.First = 1
	mustPanic(t, "columns beyond the head", func() { d.HeadNormRope(out, none, x, none, at, rope, kernels.Norm{}) })
	rope.First, rope.Interleaved = 0, true
	mustPanic(t, "a norm of interleaved pairs", func() {
		d.HeadNormRope(out, c.f32(2, 2), x, c.f32(1, 16), at, rope, kernels.Norm{})
	})
}
