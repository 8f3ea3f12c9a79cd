package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

// ropeHeads is the number of heads and their length for a case.
func (c *rowCase) ropeHeads() (heads, dim int) {
	dims := []int{2, 16, 32, 64, 128}
	return 1 + c.size%3, dims[c.size]
}

func (c *rowCase) rope(positions, dim int) kernels.Rope {
	cos, sin := c.f32(positions, dim/2), c.f32(positions, dim/2)
	for i := range cos.F32s() {
		a := c.rng.Float64() * 6.3
		cos.F32s()[i], sin.F32s()[i] = float32(math.Cos(a)), float32(math.Sin(a))
	}
	return kernels.Rope{Cos: cos, Sin: sin}
}

var ropeOps = []rowOp{
	{name: "HeadNormRope", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		heads, dim := c.ropeHeads()
		n := heads * dim
		x, out, plain := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n))
		rstd, w, rope, positions := c.part(c.f32(c.n, heads)), c.weight(1, dim), c.rope(13, dim), c.partOf(c.ints(c.n, 13))
		d.HeadNormRope(out, rstd, x, w, positions, rope, 1e-6)
		d.HeadNormRope(plain, kernels.Tensor{}, x, kernels.Tensor{}, positions, rope, 1e-6)
		d.HeadNormRope(x, rstd, x, w, positions, rope, 1e-6)
		return []kernels.Tensor{out, plain, x, rstd}, nil
	}},
	{name: "HeadNormRopeBackward", run: func(d *Device, c *rowCase) (rows, whole []kernels.Tensor) {
		heads, dim := c.ropeHeads()
		n := heads * dim
		x, dout, dx, plain := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n))
		rstd, w, rope, positions := c.part(c.f32(c.n, heads)), c.weight(1, dim), c.rope(13, dim), c.partOf(c.ints(c.n, 13))
		dw := c.f32(1, dim)
		d.HeadNormRopeBackward(dx, kernels.Tensor{}, dout, x, rstd, w, positions, rope, onePack(dx))
		d.HeadNormRopeBackward(plain, kernels.Tensor{}, dout, x, kernels.Tensor{}, kernels.Tensor{}, positions, rope, onePack(plain))
		d.HeadNormRopeBackward(dout, dw, dout, x, rstd, w, positions, rope, onePack(dout))
		return []kernels.Tensor{dx, plain, dout}, []kernels.Tensor{dw}
	}},
}

func TestHeadNormRopeIsTheDefinition(t *testing.T) {
	d := newRowDevice(t, Auto, 2, "")
	c := rowCase{seed: 11, dtype: kernels.F32}
	c.start()
	const rows, heads, dim, half, eps = 150, 3, 64, 32, 1e-6
	x, out, rstd, w := c.strided(rows, heads*dim), c.strided(rows, heads*dim), c.f32(rows, heads), c.weight(1, dim)
	dout, dx, dw := c.strided(rows, heads*dim), c.strided(rows, heads*dim), c.f32(1, dim)
	rope, positions := c.rope(9, dim), c.ints(rows, 9)
	wantDW, ws := rowValues(dw), rowValues(w)
	d.HeadNormRope(out, rstd, x, w, positions, rope, eps)
	d.HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions, rope, sumPacks)
	sum := rowSum{total: wantDW}
	for r := range rows {
		sum.row(r)
		p := int(positions.I32s()[r])
		cos, sin := rope.Cos.F32s()[p*half:], rope.Sin.F32s()[p*half:]
		for h := range heads {
			from, to := h*dim, (h+1)*dim
			xs := rowValues(x.RowRange(r, r+1).ColRange(from, to))
			ds := rowValues(dout.RowRange(r, r+1).ColRange(from, to))
			rs := scalarRStd(xs, eps)
			y, dz, z := make([]float32, dim), make([]float32, dim), make([]float32, dim)
			for i := range xs {
				z[i] = float32(xs[i]*rs) * ws[i]
			}
			for i := range half {
				y[i] = float32(z[i]*cos[i]) - float32(z[i+half]*sin[i])
				y[i+half] = float32(z[i+half]*cos[i]) + float32(z[i]*sin[i])
				dz[i] = float32(ds[i]*cos[i]) + float32(ds[i+half]*sin[i])
				dz[i+half] = float32(ds[i+half]*cos[i]) - float32(ds[i]*sin[i])
			}
			grad, xh := scalarNormGrad(dz, xs, ws, rs)
			for i := range xs {
				sum.add(i, dz[i]*xh[i])
			}
			wantBits(t, "rstd", rstd.RowRange(r, r+1).ColRange(h, h+1), []float32{rs})
			wantBits(t, "out", out.RowRange(r, r+1).ColRange(from, to), y)
			wantBits(t, "dx", dx.RowRange(r, r+1).ColRange(from, to), grad)
		}
	}
	sum.row(-1)
	wantBits(t, "dw", dw, wantDW)
}

// rope64 is the loss sum(dout * HeadNormRope(x)) in float64, w nil for no norm.
func rope64(x, w, dout []float64, heads, dim int, positions []int32, rope kernels.Rope, eps float64) float64 {
	half, loss := dim/2, 0.0
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
		p := int(positions[at/(heads*dim)])
		for i := range half {
			c, s := float64(rope.Cos.F32s()[p*half+i]), float64(rope.Sin.F32s()[p*half+i])
			loss += dout[at+i]*(z[i]*c-z[i+half]*s) + dout[at+i+half]*(z[i+half]*c+z[i]*s)
		}
	}
	return loss
}

func TestHeadNormRopeGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2, "")
	c := rowCase{seed: 12, dtype: kernels.F32}
	c.start()
	const rows, heads, dim, eps = 4, 2, 16, 1e-5
	x, w, dout, rstd := c.f32(rows, heads*dim), c.f32(1, dim), c.f32(rows, heads*dim), c.f32(rows, heads)
	dx, dw := rowTensor(kernels.F32, rows, heads*dim), rowTensor(kernels.F32, 1, dim)
	rope, positions := c.rope(20, dim), c.ints(rows, 20)
	d.HeadNormRope(rowTensor(kernels.F32, rows, heads*dim), rstd, x, w, positions, rope, eps)
	d.HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions, rope, onePack(dx))
	x64, w64, dout64, at := to64(x), to64(w), to64(dout), positions.I32s()
	loss := func(x, w []float64) float64 { return rope64(x, w, dout64, heads, dim, at, rope, eps) }
	checkGradient(t, "dx", x64, func(p []float64) float64 { return loss(p, w64) }, rowValues(dx))
	checkGradient(t, "dw", w64, func(p []float64) float64 { return loss(x64, p) }, rowValues(dw))
	d.HeadNormRopeBackward(dx, kernels.Tensor{}, dout, x, kernels.Tensor{}, kernels.Tensor{}, positions, rope, onePack(dx))
	checkGradient(t, "dx without norm", x64, func(p []float64) float64 { return loss(p, nil) }, rowValues(dx))
}

func TestHeadNormRopeRefuses(t *testing.T) {
	d := newRowDevice(t, Auto, 1, "")
	c := rowCase{seed: 13, dtype: kernels.F32}
	c.start()
	x, out, rope, none := c.f32(2, 32), c.f32(2, 32), c.rope(4, 16), kernels.Tensor{}
	mustPanic(t, "a position beyond the tables", func() { d.HeadNormRope(out, none, x, none, kernels.WrapI32([]int32{0, 4}), rope, 0) })
	mustPanic(t, "heads that do not divide the row", func() {
		d.HeadNormRope(out.ColRange(0, 24), none, x.ColRange(0, 24), none, kernels.WrapI32([]int32{0, 1}), rope, 0)
	})
	mustPanic(t, "a gradient of no weight", func() {
		d.HeadNormRopeBackward(out, c.f32(1, 16), out, x, none, none, kernels.WrapI32([]int32{0, 1}), rope, onePack(out))
	})
}
