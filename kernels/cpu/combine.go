package cpu

import "lockstep/kernels"

// Combine: out[t] = round(sum over slots k ascending, from +0, of weights[t,k]*y[rowOf[t,k]]), each product rounded;
// weights nil: of y alone. By Definition.Combine products and sums are rounded to bf16 on the way. out [T, H]; y [R,
// H]; weights F32 and rowOf int32 [T, K].
func (d *Device) Combine(out, y, weights, rowOf kernels.Tensor) {
	const op = "combine"
	k := rowOf.Cols
	mustShape(op, "out", out, rowOf.Rows, y.Cols)
	rows := indices(op, "rowOf", rowOf, out.Rows*k)
	mustIndex(op, rows, y.Rows)
	var ws []float32
	if !weights.IsNil() {
		ws = vector(op, "weights", weights, out.Rows*k)
	}
	o, in := d.matrix(out), d.matrix(y)
	d.eachRow(out.Rows, y.Cols*k, 2, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			z := o.target(t, buf[0])
			clear(z)
			for at := t * k; at < (t+1)*k; at++ {
				row := in.load(int(rows[at]), buf[1])
				switch {
				case ws == nil:
					d.vec.Add(z, z, row)
				case d.def.Combine == kernels.ToBF16:
					addInBF16(z, row, ws[at])
				default:
					d.vec.ScaleAdd(z, 1, row, ws[at])
				}
			}
			o.store(t, z)
		}
	})
}

// addInBF16 is z + row*w by Definition.Combine.
func addInBF16(z, row []float32, w float32) {
	for i, v := range row {
		z[i] = kernels.NearestBF16(z[i] + kernels.NearestBF16(v*w))
	}
}

// CombineBackward: dy[row] = round(weights[t,k]*dout[t]) and dweights[t,k] = tree(dout[t]*y[row]) for row = rowOf[t,k].
// Every row of dy [R, H] belongs to one (token, slot). dweights F32 [T, K].
func (d *Device) CombineBackward(dy, dweights, dout, y, weights, rowOf kernels.Tensor) {
	const op = "combine backward"
	k := rowOf.Cols
	mustShape(op, "dout", dout, rowOf.Rows, y.Cols)
	mustShape(op, "dy", dy, dout.Rows*k, y.Cols)
	mustShape(op, "y", y, dy.Rows, dy.Cols)
	rows := indices(op, "rowOf", rowOf, y.Rows)
	mustIndex(op, rows, y.Rows)
	ws, dws := vector(op, "weights", weights, y.Rows), vector(op, "dweights", dweights, y.Rows)
	grad, g, in := d.matrix(dy), d.matrix(dout), d.matrix(y)
	d.eachRow(dout.Rows, y.Cols*k, 2, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			v := g.load(t, buf[0])
			for at := t * k; at < (t+1)*k; at++ {
				row := int(rows[at])
				dws[at] = d.vec.TreeDot(v, in.load(row, buf[1]))
				z := grad.target(row, buf[1])
				d.vec.ScaleTo(z, v, ws[at])
				grad.store(row, z)
			}
		}
	})
}
