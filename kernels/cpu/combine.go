package cpu

import "lockstep/kernels"

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

// CombineBackward, of pairs p = t*K + slot with r = rowOf[p]: dy[r] = round(weights[p]*dout[t]) and dweights[p] =
// tree(dout[t]*y[r]); of an owner of the rows from `from` on its own alone, with dweights by row. dout [T, H]; y and dy
// [R, H]; weights F32 [T, K].
func (d *Device) CombineBackward(dy, dweights, dout, y, weights, rowOf kernels.Tensor, from int) {
	const op = "combine backward"
	pairs, k, byRow := rowOf.Len(), weights.Cols, from != kernels.AllRows
	first, end, values := 0, pairs, pairs // of rows, and of dweights
	if byRow {
		first, end, values = from, from+y.Rows, y.Rows
	}
	mustShape(op, "dout", dout, weights.Rows, y.Cols)
	mustShape(op, "dy", dy, y.Rows, y.Cols)
	ws, dws := vector(op, "weights", weights, pairs), vector(op, "dweights", dweights, values)
	rows := indices(op, "rowOf", rowOf, pairs)
	mustIndex(op, rows, max(pairs, end))
	grad, g, in := d.matrix(dy), d.matrix(dout), d.matrix(y)
	d.eachRow(pairs, y.Cols, 2, func(from, to int, buf [][]float32) {
		var v []float32 // of token `of`
		for p, of := from, -1; p < to; p++ {
			row := int(rows[p])
			if row < first || row >= end {
				continue
			}
			if p/k != of {
				of = p / k
				v = g.load(of, buf[0])
			}
			r, at := row-first, p
			if byRow {
				at = r
			}
			dws[at] = d.vec.TreeDot(v, in.load(r, buf[1]))
			z := grad.target(r, buf[1])
			d.vec.ScaleTo(z, v, ws[p])
			grad.store(r, z)
		}
	})
}
