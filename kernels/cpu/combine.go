package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Combine: sum[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product rounded;
// weights nil: of y alone; out[t] = round(residual[t] + sum[t]), residual nil: sum[t]. By Definition.Combine products
// and sums are rounded to bf16 on the way. out and residual [T, H]; y [R, H]; weights F32 and rowOf int32 [T, K]. out
// may be residual.
func (d *Device) Combine(out, residual, y, weights, rowOf kernels.Tensor) {
	mustShape("combine", "out", out, rowOf.Rows, y.Cols)
	in := d.matrix(y)
	d.combine("combine", out, residual, y.Rows, weights, rowOf, in.load)
}

// combine is Combine of so many rows, which load reads.
func (d *Device) combine(op string, out, residual kernels.Tensor, count int, weights, rowOf kernels.Tensor,
	load func(row int, buf []float32) []float32) {
	k := rowOf.Cols
	rows := indices(op, "rowOf", rowOf, out.Rows*k)
	mustIndex(op, rows, count)
	var ws []float32
	if !weights.IsNil() {
		ws = vector(op, "weights", weights, out.Rows*k)
	}
	o, add := d.matrix(out), d.residual(op, residual, out)
	d.eachRow(out.Rows, out.Cols*k, 2, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			z := buf[0][:out.Cols] // and not out's own row, which the residual may be
			clear(z)
			for at := t * k; at < (t+1)*k; at++ {
				row := load(int(rows[at]), buf[1])
				switch {
				case ws == nil:
					d.vec.Add(z, z, row)
				case d.def.Combine == kernels.ToBF16:
					addInBF16(z, row, ws[at])
				default:
					d.vec.ScaleAdd(z, 1, row, ws[at])
				}
			}
			add(t, z, buf[1])
			o.storePart(t, 0, z)
		}
	})
}

// residual is how row t of a sum is added to that of a residual, once it is rounded to storage, in its place; buf is
// scratch. Where residual is nil nothing is added.
func (d *Device) residual(op string, residual, out kernels.Tensor) func(t int, sum, buf []float32) {
	if residual.IsNil() {
		return func(int, []float32, []float32) {}
	}
	mustShape(op, "residual", residual, out.Rows, out.Cols)
	in := d.matrix(residual)
	return func(t int, sum, buf []float32) {
		if out.DType == kernels.BF16 {
			for i, v := range sum {
				sum[i] = kernels.NearestBF16(v)
			}
		}
		d.vec.Add(sum, in.load(t, buf), sum)
	}
}

// addInBF16 is z + row*w by Definition.Combine.
func addInBF16(z, row []float32, w float32) {
	for i, v := range row {
		z[i] = kernels.NearestBF16(z[i] + kernels.NearestBF16(v*w))
	}
}

// CombineBackward, of n pairs p = t*K + slot: with p = pair[i] and r = row[i], dy[r] = round(weights[p]*dout[t]) and
// dweights[i] = tree(dout[t]*y[r]); without pair p is i, without row r is i. dout [T, H]; y and dy [R, H]; weights F32
// [T, K]; dweights F32 of n elements.
func (d *Device) CombineBackward(dy, dweights, dout, y, weights, pair, row kernels.Tensor) {
	const op = "combine backward"
	n, k := dweights.Len(), weights.Cols
	mustShape(op, "dout", dout, weights.Rows, y.Cols)
	mustShape(op, "dy", dy, y.Rows, y.Cols)
	ws, dws := vector(op, "weights", weights, weights.Len()), vector(op, "dweights", dweights, n)
	pairs, rows := chosen(op, "pair", pair, n, len(ws)), chosen(op, "row", row, n, y.Rows)
	grad, g, in := d.matrix(dy), d.matrix(dout), d.matrix(y)
	d.eachRow(n, y.Cols, 2, func(from, to int, buf [][]float32) {
		var v []float32 // of token `of`
		for i, of := from, -1; i < to; i++ {
			p, r := pairs(i), rows(i)
			if p/k != of {
				of = p / k
				v = g.load(of, buf[0])
			}
			dws[i] = d.vec.TreeDot(v, in.load(r, buf[1]))
			z := grad.target(r, buf[1])
			d.vec.ScaleTo(z, v, ws[p])
			grad.store(r, z)
		}
	})
}

// chosen is the i-th of n indices below most: that of a tensor, or i itself where it is nil.
func chosen(op, name string, t kernels.Tensor, n, most int) func(i int) int {
	if t.IsNil() {
		if n > most {
			panic(fmt.Sprintf("cpu: %s: %d of %d without %s", op, n, most, name))
		}
		return func(i int) int { return i }
	}
	list := indices(op, name, t, n)
	mustIndex(op, list, most)
	return func(i int) int { return int(list[i]) }
}
