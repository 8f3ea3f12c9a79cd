package cpu

import (
	"testing"

	"lockstep/kernels"
)

var embedOps = []rowOp{
	{name: "Embed", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		table, ids, out := c.strided(11, c.cols()), c.ints(c.n, 11), c.strided(c.n, c.cols())
		d.Embed(c.part(out), table, c.partOf(ids))
		return []kernels.Tensor{c.part(out)}, nil
	}},
	{name: "Gather", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, source, out := c.strided(5, c.cols()), c.ints(c.n, 5), c.strided(c.n, c.cols())
		d.Gather(c.part(out), x, c.partOf(source))
		return []kernels.Tensor{c.part(out)}, nil
	}},
	{name: "EmbedBackward", run: func(d *Device, c *rowCase) (_, other []kernels.Tensor) {
		grad, dout, ids := c.f32(4, c.cols()), c.strided(c.n, c.cols()), c.ints(c.n, 4)
		d.EmbedBackward(grad, dout, ids, []int32{0, int32(c.n / 3), int32(c.n)})
		return nil, []kernels.Tensor{grad}
	}},
}

func TestEmbedValues(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 3, dtype: kernels.F32, n: 40}
	c.start()
	table, ids, out := c.strided(7, 33), c.ints(40, 7), c.strided(40, 33)
	d.Embed(out, table, ids)
	rows := rowValues(table)
	for i, id := range ids.I32s() {
		wantBits(t, "row", out.RowRange(i, i+1), rows[int(id)*33:][:33])
	}
	grad, dout := c.f32(7, 33), c.strided(40, 33)
	want, segments := rowValues(grad), []int32{0, 17, 17, 40}
	for s, from := range segments[:3] {
		sums := make([]float32, 7*33)
		for i, id := range ids.I32s()[from:segments[s+1]] {
			for j, v := range rowValues(dout.RowRange(int(from)+i, int(from)+i+1)) {
				sums[int(id)*33+j] += v
			}
		}
		for i, v := range sums {
			want[i] += v
		}
	}
	d.EmbedBackward(grad, dout, ids, segments)
	wantBits(t, "gradient", grad, want)
	ids.I32s()[39] = 7
	mustPanic(t, "an id beyond the table", func() { d.Embed(out, table, ids) })
	ids.I32s()[39] = -1
	mustPanic(t, "a negative id", func() { d.EmbedBackward(grad, out, ids, segments) })
}

func TestGather(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 4, dtype: kernels.F32, n: 40}
	c.start()
	x, source, out := c.strided(9, 33), c.ints(40, 9), c.strided(40, 33)
	d.Gather(out, x, source)
	rows := rowValues(x)
	for r, from := range source.I32s() {
		wantBits(t, "row", out.RowRange(r, r+1), rows[int(from)*33:][:33])
	}
	source.I32s()[0] = 9
	mustPanic(t, "a row beyond x", func() { d.Gather(out, x, source) })
}

// Rows of one id are added in their order: another order has other bits.
func TestEmbedBackwardOrder(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	grad := kernels.Wrap(make([]float32, 16), 1, 16)
	x := make([]float32, 3*16)
	for j := range 16 {
		x[j], x[16+j], x[32+j] = 1, 1e8, -1e8
	}
	d.EmbedBackward(grad, kernels.Wrap(x, 3, 16), kernels.WrapI32([]int32{0, 0, 0}), []int32{0, 3})
	if got := grad.F32s()[5]; got != 0 {
		t.Errorf("(1 + 1e8) - 1e8 = %v, want 0; 1 is the sum in the opposite order", got)
	}
}
