package cpu

import "lockstep/kernels"

// Add: out = round(a + b), all [T, H]. out may be a or b.
func (d *Device) Add(out, a, b kernels.Tensor) {
	mustShape("add", "a", a, out.Rows, out.Cols)
	mustShape("add", "b", b, out.Rows, out.Cols)
	o, x, y := d.matrix(out), d.matrix(a), d.matrix(b)
	d.eachRow(out.Rows, out.Cols, 2, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			z := o.target(r, buf[0])
			d.vec.Add(z, x.load(r, buf[0]), y.load(r, buf[1]))
			o.store(r, z)
		}
	})
}

// Scale: out = round(x * a), both [T, H]. out may be x.
func (d *Device) Scale(out, x kernels.Tensor, a float32) {
	mustShape("scale", "x", x, out.Rows, out.Cols)
	o, in := d.matrix(out), d.matrix(x)
	d.eachRow(out.Rows, out.Cols, 1, func(from, to int, buf [][]float32) {
		for r := from; r < to; r++ {
			z := o.target(r, buf[0])
			d.vec.ScaleTo(z, in.load(r, buf[0]), a)
			o.store(r, z)
		}
	})
}

// Accumulate: dst = ((dst + parts[0]) + parts[1]) + ..., with dst F32 [1, n] and parts F32 [S, n], and then others.
func (d *Device) Accumulate(dst, parts kernels.Tensor, then ...kernels.PartSum) {
	const op = "accumulate"
	for _, of := range append([]kernels.PartSum{{Dst: dst, Parts: parts}}, then...) {
		mustShape(op, "parts", of.Parts, of.Parts.Rows, of.Dst.Len())
		sum, in := vector(op, "dst", of.Dst, of.Dst.Len()), d.matrix(of.Parts)
		d.pool.each(len(sum), rowWork, func(_, from, to int) {
			for s := range of.Parts.Rows {
				d.vec.Add(sum[from:to], sum[from:to], in.loadPart(s, from, to, nil))
			}
		})
	}
}
