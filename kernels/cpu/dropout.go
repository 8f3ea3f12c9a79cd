package cpu

import "lockstep/kernels"

// Dropout: out = round(x * factor) or 0, both [T, H], as kernels.Device states. out may be x.
func (d *Device) Dropout(out, x kernels.Tensor, o kernels.Dropout) {
	mustShape("dropout", "x", x, out.Rows, out.Cols)
	to, in, least, factor := d.matrix(out), d.matrix(x), o.Threshold(), o.Factor()
	d.eachRow(out.Rows, out.Cols, 1, func(from, end int, buf [][]float32) {
		for r := from; r < end; r++ {
			z := to.target(r, buf[0])
			d.vec.ScaleTo(z, in.load(r, buf[0]), factor)
			for c := 0; c < len(z); c += 4 {
				for j, word := range o.Words(r, c/4) {
					if word < least && c+j < len(z) {
						z[c+j] = 0
					}
				}
			}
			to.store(r, z)
		}
	})
}
