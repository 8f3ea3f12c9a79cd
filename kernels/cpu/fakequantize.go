package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/quant"
)

// FakeQuantize makes out what codes leave of x, both [G, R, C], F32 or BF16 each.
func (d *Device) FakeQuantize(out, x kernels.Tensor, e quant.Encoding) {
	if out.Groups != x.Groups || out.Rows != x.Rows || out.Cols != x.Cols {
		panic(fmt.Sprintf("cpu: FakeQuantize: %s to %s", x, out))
	}
	high, n := e.High(), x.Cols
	bands := (x.Rows + high - 1) / high
	in, to := d.matrix(x), d.matrix(out)
	d.pool.each(x.Groups*bands, max(1, rowWork/max(n*high, 1)), func(_, from, end int) {
		values, most := make([]float32, high*n), make([]float32, n)
		for band := from; band < end; band++ {
			first := band/bands*x.Rows + band%bands*high
			rows := min(high, x.Rows-band%bands*high)
			for r := range rows {
				if row := values[r*n : (r+1)*n]; e == quant.MXFP8 {
					v := in.load(first+r, row)
					d.vec.BlockLargest(most, v)
					d.vec.MXFP8(row, v, most)
				} else {
					copy(row, in.load(first+r, row))
				}
			}
			if e != quant.MXFP8 {
				e.Round(values[:rows*n], rows, n)
			}
			for r := range rows {
				to.storePart(first+r, 0, values[r*n:(r+1)*n])
			}
		}
	})
}

// FakeQuantizeHeads makes of x [R, heads*width] what MXFP8 leaves of it, in blocks of each head.
func (d *Device) FakeQuantizeHeads(x kernels.Tensor, width int) {
	if width <= 0 || x.Cols%width != 0 {
		panic(fmt.Sprintf("cpu: FakeQuantizeHeads: %s in heads of %d", x, width))
	}
	m := d.matrix(x)
	d.pool.each(x.Groups*x.Rows, max(1, rowWork/max(x.Cols, 1)), func(_, from, to int) {
		values, most := make([]float32, x.Cols), make([]float32, width)
		for r := from; r < to; r++ {
			row := m.load(r, values)
			for at := 0; at < x.Cols; at += width {
				d.vec.BlockLargest(most, row[at:at+width])
				d.vec.MXFP8(values[at:at+width], row[at:at+width], most)
			}
			m.storePart(r, 0, values)
		}
	})
}

// FakeQuantizeRows makes out what MXFP8 leaves of x, both [R, C], in blocks of rows.
func (d *Device) FakeQuantizeRows(out, x kernels.Tensor, g *kernels.Groups) {
	const op = "FakeQuantizeRows"
	mustShape(op, "out", out, x.Rows, x.Cols)
	mustShape(op, "x", x, x.Rows, x.Cols)
	if out.DType != x.DType || g.Interleaved {
		panic(fmt.Sprintf("cpu: %s: %s to %s, interleaved groups: %t", op, x, out, g.Interleaved))
	}
	high := quant.MXFP8.Format().Wide
	var blocks [][2]int // rows
	offsets := indices(op, "offsets", g.Offsets, g.Count*g.Segments+1)
	for i, from := range offsets[:len(offsets)-1] {
		for at, end := int(from), int(offsets[i+1]); at < end; at += high {
			blocks = append(blocks, [2]int{at, min(at+high, end)})
		}
	}
	in, to := d.matrix(x), d.matrix(out)
	d.pool.each(len(blocks), max(1, rowWork/max(x.Cols*high, 1)), func(_, from, end int) {
		values, most := make([]float32, x.Cols), make([]float32, x.Cols)
		for _, b := range blocks[from:end] {
			clear(most)
			for r := b[0]; r < b[1]; r++ {
				d.vec.Largest(most, in.load(r, values))
			}
			for r := b[0]; r < b[1]; r++ {
				d.vec.MXFP8(values, in.load(r, values), most)
				to.storePart(r, 0, values)
			}
		}
	})
}
