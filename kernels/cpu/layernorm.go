package cpu

import (
	"math"

	"lockstep/kernels"
)

// LayerNorm: mean = tree(x)/n, c = x - mean, rstd = 1/sqrt(tree(c*c)/n + eps), out = round((c*rstd)*w + bias) (Ba et
// al., arXiv 1607.06450).
func (d *Device) LayerNorm(out, x, w, bias kernels.Tensor, eps float32) {
	const op = "layer norm"
	n := x.Cols
	mustShape(op, "out", out, x.Rows, n)
	mustShape(op, "w", w, 1, n)
	mustShape(op, "bias", bias, 1, n)
	o, in, scales, shifts := d.matrix(out), d.matrix(x), d.matrix(w), d.matrix(bias)
	d.eachRow(x.Rows, n, 4, func(from, to int, buf [][]float32) {
		g, b, xh := scales.load(0, buf[1]), shifts.load(0, buf[2]), buf[3][:n]
		for r := from; r < to; r++ {
			d.standardise(xh, in.load(r, buf[0]), eps)
			for i, x := range xh {
				xh[i] = float32(x*g[i]) + b[i]
			}
			o.storePart(r, 0, xh)
		}
	})
}

// standardise is xh = c*rstd of a row, and rstd.
func (d *Device) standardise(xh, x []float32, eps float32) (rstd float32) {
	n := float32(len(x))
	mean := d.vec.Tree(x) / n
	for i, v := range x {
		xh[i] = v - mean
	}
	rstd = 1 / float32(math.Sqrt(float64(d.vec.TreeDot(xh, xh)/n+eps)))
	d.vec.Scale(xh, rstd)
	return rstd
}

// LayerNormBackward, with c and rstd as in LayerNorm, g = dy*w and xh = c*rstd: dx = round(rstd*((g - tree(g)/n) -
// xh*(tree(g*xh)/n))), and dw[j] += dy*xh and dbias[j] += dy as sums over rows. dx, dy, x [T, n]; w [1, n]; dw, dbias
// F32 [1, n]. dx may be dy.
func (d *Device) LayerNormBackward(dx, dw, dbias, dy, x, w kernels.Tensor, eps float32, segments []int32) {
	const op = "layer norm backward"
	n := x.Cols
	mustShape(op, "dx", dx, x.Rows, n)
	mustShape(op, "dy", dy, x.Rows, n)
	mustShape(op, "w", w, 1, n)
	mustSegments(op, segments, x.Rows)
	sums, shifts := d.rowSums(op, "dw", dw, n, segments), d.rowSums(op, "dbias", dbias, n, segments)
	out, grad, in, scales := d.matrix(dx), d.matrix(dy), d.matrix(x), d.matrix(w)
	along, plain := make([]float32, x.Rows*n), make([]float32, x.Rows*n) // dy*xh, and a copy of dy, since dx may be dy
	d.eachRow(x.Rows, n, 4, func(from, to int, buf [][]float32) {
		weight, g, xh := scales.load(0, buf[1]), buf[2], buf[3]
		for r := from; r < to; r++ {
			dys := plain[r*n:][:n]
			copy(dys, grad.load(r, dys))
			rstd := d.standardise(xh, in.load(r, buf[0]), eps)
			d.vec.Mul(along[r*n:][:n], dys, xh)
			d.vec.Mul(g, dys, weight)
			mean, slope := d.vec.Tree(g)/float32(n), d.vec.TreeDot(g, xh)/float32(n)
			for i, x := range xh {
				g[i] = rstd * ((g[i] - mean) - float32(x*slope))
			}
			out.storePart(r, 0, g)
		}
	})
	d.addRows(sums, along, segments)
	d.addRows(shifts, plain, segments)
}
