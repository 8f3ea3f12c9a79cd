package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

// normGroups is the number of heads or groups of a case.
func (c *rowCase) normGroups() int { return 1 + c.size%3 }

var gatedNormOps = []rowOp{
	{name: "NormThenGate", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		heads, n := c.normGroups(), c.cols()
		x, z, out, rstd := c.part(c.strided(c.n, heads*n)), c.part(c.strided(c.n, heads*n)),
			c.part(c.strided(c.n, heads*n)), c.part(c.f32(c.n, heads))
		d.NormThenGate(out, rstd, x, z, c.f32(1, n), 1e-6)
		return []kernels.Tensor{out, rstd}, nil
	}},
	{name: "NormThenGateBackward", run: func(d *Device, c *rowCase) (rows, other []kernels.Tensor) {
		heads, n := c.normGroups(), c.cols()
		x, z, dout := c.part(c.strided(c.n, heads*n)), c.part(c.strided(c.n, heads*n)), c.part(c.strided(c.n, heads*n))
		dx, dz, rstd, w, dw := c.part(c.strided(c.n, heads*n)), c.part(c.strided(c.n, heads*n)),
			c.part(c.f32(c.n, heads)), c.f32(1, n), c.f32(1, n)
		d.NormThenGateBackward(dx, dz, dw, dout, x, z, rstd, w, oneSegment(dx))
		return []kernels.Tensor{dx, dz}, []kernels.Tensor{dw}
	}},
	{name: "GateThenNorm", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		groups, n := c.normGroups(), c.cols()
		x, z, out, rstd := c.part(c.strided(c.n, groups*n)), c.part(c.strided(c.n, groups*n)),
			c.part(c.strided(c.n, groups*n)), c.part(c.f32(c.n, groups))
		d.GateThenNorm(out, rstd, x, z, c.weight(1, groups*n), groups, 1e-6)
		return []kernels.Tensor{out, rstd}, nil
	}},
	{name: "GateThenNormBackward", run: func(d *Device, c *rowCase) (rows, other []kernels.Tensor) {
		groups, n := c.normGroups(), c.cols()
		x, z, dout := c.part(c.strided(c.n, groups*n)), c.part(c.strided(c.n, groups*n)),
			c.part(c.strided(c.n, groups*n))
		dx, dz, rstd, w, dw := c.part(c.strided(c.n, groups*n)), c.part(c.strided(c.n, groups*n)),
			c.part(c.f32(c.n, groups)), c.weight(1, groups*n), c.f32(1, groups*n)
		d.GateThenNormBackward(dx, dz, dw, dout, x, z, rstd, w, groups, oneSegment(dx))
		return []kernels.Tensor{dx, dz}, []kernels.Tensor{dw}
	}},
}

// scalarSilu is z*sigm(z) and its derivative.
func scalarSilu(z float32) (y, dy float32) {
	s := scalarSigmoid(kernels.Exp2, z)
	return z * s, s * (1 + float32(z*(1-s)))
}

func TestNormThenGateIsTheDefinition(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 43, dtype: kernels.F32}
	c.start()
	const rows, heads, n, eps = 150, 3, 20, 1e-5
	x, z, w, out, rstd := c.strided(rows, heads*n), c.strided(rows, heads*n), c.f32(1, n), c.strided(rows, heads*n),
		c.f32(rows, heads)
	dout, dx, dz, dw := c.strided(rows, heads*n), c.strided(rows, heads*n), c.strided(rows, heads*n), c.f32(1, n)
	sum, ws := rowSum{total: rowValues(dw)}, rowValues(w)
	d.NormThenGate(out, rstd, x, z, w, eps)
	d.NormThenGateBackward(dx, dz, dw, dout, x, z, rstd, w, sumSegments)
	for r := range rows {
		sum.row(r)
		for h := range heads {
			part := func(m kernels.Tensor) kernels.Tensor { return m.RowRange(r, r+1).ColRange(h*n, (h+1)*n) }
			xs, zs, dys := rowValues(part(x)), rowValues(part(z)), rowValues(part(dout))
			y, g, gz := make([]float32, n), make([]float32, n), make([]float32, n)
			rs := scalarRStd(xs, eps)
			for i := range n {
				silu, slope := scalarSilu(zs[i])
				normed := float32(xs[i]*rs) * ws[i]
				y[i], g[i], gz[i] = silu*normed, dys[i]*silu, float32(dys[i]*normed)*slope
				sum.addHead(h, i, float32(float32(xs[i]*rs)*g[i]))
			}
			grad, _ := scalarNormGrad(g, xs, ws, rs)
			wantBits(t, "out", part(out), y)
			wantBits(t, "dz", part(dz), gz)
			wantBits(t, "dx", part(dx), grad)
		}
	}
	sum.row(-1)
	wantBits(t, "dw", dw, sum.total)
}

func TestGateThenNormIsTheDefinition(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 44, dtype: kernels.F32}
	c.start()
	const rows, groups, n, eps = 150, 3, 20, 1e-5
	x, z, w, out, rstd := c.strided(rows, groups*n), c.strided(rows, groups*n), c.weight(1, groups*n),
		c.strided(rows, groups*n), c.f32(rows, groups)
	dout, dx, dz, dw := c.strided(rows, groups*n), c.strided(rows, groups*n), c.strided(rows, groups*n),
		c.f32(1, groups*n)
	sum, ws := rowSum{total: rowValues(dw)}, rowValues(w)
	d.GateThenNorm(out, rstd, x, z, w, groups, eps)
	d.GateThenNormBackward(dx, dz, dw, dout, x, z, rstd, w, groups, sumSegments)
	for r := range rows {
		sum.row(r)
		for h := range groups {
			part := func(m kernels.Tensor) kernels.Tensor { return m.RowRange(r, r+1).ColRange(h*n, (h+1)*n) }
			xs, zs, dys := rowValues(part(x)), rowValues(part(z)), rowValues(part(dout))
			v, y, gx, gz := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range n {
				silu, _ := scalarSilu(zs[i])
				v[i] = xs[i] * silu
			}
			rs := scalarRStd(v, eps)
			grad, vh := scalarNormGrad(dys, v, ws[h*n:(h+1)*n], rs)
			for i := range n {
				silu, slope := scalarSilu(zs[i])
				y[i] = vh[i] * ws[h*n+i]
				gx[i], gz[i] = grad[i]*silu, float32(grad[i]*xs[i])*slope
				sum.add(h*n+i, vh[i]*dys[i])
			}
			wantBits(t, "out", part(out), y)
			wantBits(t, "dx", part(dx), gx)
			wantBits(t, "dz", part(dz), gz)
		}
	}
	sum.row(-1)
	wantBits(t, "dw", dw, sum.total)
}

func silu64(z float64) float64 { return z / (1 + math.Exp(-z)) }

// rms64 is the norm of a row in parts of n columns.
func rms64(x []float64, n int, eps float64) []float64 {
	y := make([]float64, len(x))
	for at := 0; at < len(x); at += n {
		sum := 0.0
		for _, v := range x[at : at+n] {
			sum += v * v
		}
		for i, v := range x[at : at+n] {
			y[at+i] = v / math.Sqrt(sum/float64(n)+eps)
		}
	}
	return y
}

func TestGatedNormGradients(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 45, dtype: kernels.F32}
	c.start()
	const rows, groups, n, eps = 3, 2, 6, 1e-3
	const width = groups * n
	x, z, dout, dx, dz := c.f32(rows, width), c.f32(rows, width), c.f32(rows, width), c.f32(rows, width),
		c.f32(rows, width)
	out, rstd, do := c.f32(rows, width), c.f32(rows, groups), to64(dout)
	for _, gateFirst := range []bool{false, true} {
		wide := n
		if gateFirst {
			wide = width
		}
		w, dw := c.f32(1, wide), kernels.Wrap(make([]float32, wide), 1, wide)
		if gateFirst {
			d.GateThenNorm(out, rstd, x, z, w, groups, eps)
			d.GateThenNormBackward(dx, dz, dw, dout, x, z, rstd, w, groups, oneSegment(dx))
		} else {
			d.NormThenGate(out, rstd, x, z, w, eps)
			d.NormThenGateBackward(dx, dz, dw, dout, x, z, rstd, w, oneSegment(dx))
		}
		loss := func(x, z, w []float64) (sum float64) {
			y := x
			if gateFirst {
				y = make([]float64, len(x))
				for i := range x {
					y[i] = x[i] * silu64(z[i])
				}
			}
			for i, v := range rms64(y, n, eps) {
				v *= do[i] * w[i%wide]
				if !gateFirst {
					v *= silu64(z[i])
				}
				sum += v
			}
			return sum
		}
		checkGradient(t, "dx", to64(x), func(p []float64) float64 { return loss(p, to64(z), to64(w)) }, rowValues(dx))
		checkGradient(t, "dz", to64(z), func(p []float64) float64 { return loss(to64(x), p, to64(w)) }, rowValues(dz))
		checkGradient(t, "dw", to64(w), func(p []float64) float64 { return loss(to64(x), to64(z), p) }, rowValues(dw))
	}
}
