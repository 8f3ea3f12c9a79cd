package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Embed: out[t] = table[ids[t]]; table [V, H], ids int32 [T], out [T, H].
func (d *Device) Embed(out, table, ids kernels.Tensor) {
	d.take("embed", out, table, ids)
}

// Gather: out[r] = x[source[r]]; x [T, H], source int32 [R], out [R, H].
func (d *Device) Gather(out, x, source kernels.Tensor) {
	d.take("gather", out, x, source)
}

func (d *Device) take(op string, out, table, ids kernels.Tensor) {
	mustShape(op, "out", out, out.Rows, table.Cols)
	at := indices(op, "ids", ids, out.Rows)
	mustIndex(op, at, table.Rows)
	d.pool.each(out.Rows, rowWork/max(out.Cols, 1), func(_, from, to int) {
		for r := from; r < to; r++ {
			d.copyPart(out, table, r*out.Stride, int(at[r])*table.Stride, out.Cols)
		}
	})
}

// mustIndex panics if an index is outside [0, n).
func mustIndex(op string, at []int32, n int) {
	for i, r := range at {
		if uint(r) >= uint(n) {
			panic(fmt.Sprintf("cpu: %s: index %d at %d of %d rows", op, r, i, n))
		}
	}
}

// EmbedBackward adds row t of dout [T, H] to row ids[t] of dtable F32 [V, H], t ascending for each row of the table.
func (d *Device) EmbedBackward(dtable, dout, ids kernels.Tensor) {
	const op = "embed backward"
	vector(op, "dtable", dtable, dtable.Rows*dout.Cols)
	at := indices(op, "ids", ids, dout.Rows)
	mustIndex(op, at, dtable.Rows)
	grad, dy := d.matrix(dtable), d.matrix(dout)
	d.eachColumn(dout.Cols, 1, func(from, to int, buf [][]float32) {
		for t, id := range at {
			g := grad.loadPart(int(id), from, to, nil)
			d.vec.Add(g, g, dy.loadPart(t, from, to, buf[0]))
		}
	})
}
