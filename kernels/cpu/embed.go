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

// EmbedBackward adds to each row of dtable F32 [V, H], segment by segment, the sum of the rows of dout [T, H] whose id
// it has, t ascending.
func (d *Device) EmbedBackward(dtable, dout, ids kernels.Tensor, segments []int32) {
	const op = "embed backward"
	vector(op, "dtable", dtable, dtable.Rows*dout.Cols)
	at := indices(op, "ids", ids, dout.Rows)
	mustIndex(op, at, dtable.Rows)
	mustSegments(op, segments, dout.Rows)
	next, first := sameIDs(at, segments)
	grad, dy := d.matrix(dtable), d.matrix(dout)
	d.eachColumn(dout.Cols, 2, func(from, to int, buf [][]float32) {
		for _, t := range first {
			sum := buf[1][:to-from]
			clear(sum)
			for r := t; r >= 0; r = next[r] {
				d.vec.Add(sum, sum, dy.loadPart(int(r), from, to, buf[0]))
			}
			g := grad.loadPart(int(at[t]), from, to, nil)
			d.vec.Add(g, g, sum)
		}
	})
}

// sameIDs returns, for each row, the next one of its segment with the same id, or -1; and the first row of each id of
// each segment, ascending.
func sameIDs(ids, segments []int32) (next, first []int32) {
	next = make([]int32, len(ids))
	last := make(map[int32]int32) // the latest row of an id
	for s, from := range segments[:len(segments)-1] {
		clear(last)
		for t := from; t < segments[s+1]; t++ {
			next[t] = -1
			if before, ok := last[ids[t]]; ok {
				next[before] = t
			} else {
				first = append(first, t)
			}
			last[ids[t]] = t
		}
	}
	return next, first
}
