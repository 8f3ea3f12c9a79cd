package cpu

import (
	"math"

	"lockstep/kernels"
)

// RMSNorm: rstd[t] = 1/sqrt(tree(x*x)/n + eps), out = round((x*rstd)*w), over each row of x [T, n]; w [1, n], rstd F32
// [1, T] (Zhang & Sennrich, arXiv 1910.07467). With PlusOne w is 1+w, rounded; without, x*rstd is rounded by
// Definition.Norm. out may be x.
func (d *Device) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	const op = "rms norm"
	mustShape(op, "out", out, x.Rows, x.Cols)
	mustShape(op, "w", w, 1, x.Cols)
	o, in, weight, rs := d.matrix(out), d.matrix(x), d.matrix(w), vector(op, "rstd", rstd, x.Rows)
	d.eachRow(x.Rows, x.Cols, 2, func(from, to int, buf [][]float32) {
		ws := weight.norm(norm, buf[1])
		for t := from; t < to; t++ {
			v := in.load(t, buf[0])
			rs[t] = rStd(d.vec.TreeDot(v, v), x.Cols, norm.Eps)
			y := o.target(t, buf[0])
			d.normScale(y, v, rs[t], ws, norm)
			o.store(t, y)
		}
	})
}

// AddRMSNorm: sum = round(a + b), then RMSNorm of sum. All but rstd F32 [1, T] and w [1, n] are [T, n]. sum may be a or
// b.
func (d *Device) AddRMSNorm(out, sum, rstd, a, b, w kernels.Tensor, norm kernels.Norm) {
	d.Add(sum, a, b)
	d.RMSNorm(out, rstd, sum, w, norm)
}

// normScale is (x*rstd)*w, in y, by Definition.Norm.
func (d *Device) normScale(y, x []float32, rstd float32, w []float32, norm kernels.Norm) {
	if !d.roundsNorm(norm) {
		d.vec.NormScale(y, x, rstd, w)
		return
	}
	for i, v := range x {
		y[i] = kernels.NearestBF16(v*rstd) * w[i]
	}
}

func (d *Device) roundsNorm(norm kernels.Norm) bool {
	return d.def.Norm == kernels.ToBF16 && !norm.PlusOne
}

// norm is the weight of a norm as it multiplies, in buf where that is not the row itself.
func (m *matrix) norm(n kernels.Norm, buf []float32) []float32 {
	w := m.load(0, buf)
	if !n.PlusOne {
		return w
	}
	buf = buf[:len(w)]
	for i, v := range w {
		buf[i] = 1 + v
	}
	return buf
}

// rStd is 1/sqrt(sum/n + eps).
func rStd(sum float32, n int, eps float32) float32 {
	return 1 / float32(math.Sqrt(float64(sum/float32(n)+eps)))
}

// RMSNormBackward, with g = dy*w and xh = x*rstd: dx = round(dx + rstd*(g - xh*(tree(g*xh)/n))), and dw[j] += dy*xh as
// a sum over rows. dx, dy, x [T, n]; rstd F32 [1, T]; w [1, n]; dw F32 [1, n] or nil.
func (d *Device) RMSNormBackward(dx, dw, dy, x, rstd, w kernels.Tensor, norm kernels.Norm, segments []int32) {
	const op = "rms norm backward"
	mustShape(op, "dx", dx, x.Rows, x.Cols)
	mustShape(op, "dy", dy, x.Rows, x.Cols)
	mustShape(op, "w", w, 1, x.Cols)
	grad, dout, in, weight, rs := d.matrix(dx), d.matrix(dy), d.matrix(x), d.matrix(w), vector(op, "rstd", rstd, x.Rows)
	d.eachRow(x.Rows, x.Cols, 4, func(from, to int, buf [][]float32) {
		ws := weight.norm(norm, buf[3])
		for t := from; t < to; t++ {
			g, xs, z := buf[0], in.load(t, buf[1]), grad.load(t, buf[2])
			d.vec.Mul(g, dout.load(t, g), ws)
			d.vec.NormGradAdd(z, g, xs, rs[t], d.vec.TreeScaled(g, xs, rs[t])/float32(x.Cols))
			grad.store(t, z)
		}
	})
	if dw.IsNil() {
		return
	}
	mustSegments(op, segments, x.Rows)
	sums := d.rowSums(op, "dw", dw, x.Cols, segments)
	d.eachColumn(x.Cols, 2+sumScratch, func(from, to int, buf [][]float32) {
		d.sumRows(sums.columns(from, to), buf[2:], segments, func(run []float32, t int) {
			d.vec.AddMul(run, in.loadPart(t, from, to, buf[0]), rs[t], dout.loadPart(t, from, to, buf[1]))
		})
	})
}
