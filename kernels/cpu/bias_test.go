package cpu

import (
	"testing"

	"lockstep/kernels"
)

var biasOps = []rowOp{
	{name: "AddBias", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, out, bias, wide := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols())), c.weight(1, c.cols()),
			c.f32(1, c.cols())
		d.AddBias(out, x, bias, nil)
		d.AddBias(x, x, wide, nil)
		return []kernels.Tensor{out, x}, nil
	}},
	{name: "BiasGrad", uncut: true, run: func(d *Device, c *rowCase) (_, other []kernels.Tensor) {
		dy, dbias := c.strided(c.n, c.cols()), c.f32(3, c.cols())
		dbias.Groups, dbias.Rows = 3, 1
		d.BiasGrad(dbias, dy, groupsAt(2, 0, 0, int32(c.n/2), int32(c.n/2), int32(c.n/2), int32(c.n-1), int32(c.n)))
		return nil, []kernels.Tensor{dbias}
	}},
}

// groupsAt are groups of so many segments each.
func groupsAt(segments int, at ...int32) *kernels.Groups {
	return &kernels.Groups{Offsets: kernels.WrapI32(at), Count: (len(at) - 1) / segments, Segments: segments}
}

func TestBiasIsTheDefinition(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 41, dtype: kernels.F32}
	c.start()
	const rows, n = 200, 70
	x, out, dy, bias, dbias := c.strided(rows, n), c.strided(rows, n), c.strided(rows, n), c.f32(4, n), c.f32(4, n)
	bias.Groups, bias.Rows, dbias.Groups, dbias.Rows = 4, 1, 4, 1
	at := []int32{0, 70, 150, 150, 150, 151, 151, 151, rows} // group 1 is empty, and so is the first segment of group 3
	want, y := rowValues(dbias), make([]float32, rows*n)
	d.AddBias(out, x, bias, groupsAt(2, at...))
	d.BiasGrad(dbias, dy, groupsAt(2, at...))
	xs, bs, ds := rowValues(x), rowValues(bias), rowValues(dy)
	for segment, from := range at[:len(at)-1] {
		e, total := segment/2, make([]float32, n)
		for block := from; block < at[segment+1]; block += kernels.RowBlock {
			sum, run := make([]float32, n), make([]float32, n)
			for r := int(block); r < int(min(block+kernels.RowBlock, at[segment+1])); r++ {
				if (r-int(block))%kernels.RowRun == 0 {
					addTo(sum, run)
					clear(run)
				}
				for i := range n {
					y[r*n+i] = xs[r*n+i] + bs[e*n+i]
					run[i] += ds[r*n+i]
				}
			}
			addTo(sum, run)
			addTo(total, sum)
		}
		addTo(want[e*n:(e+1)*n], total)
	}
	wantBits(t, "out", out, y)
	wantBits(t, "dbias", dbias, want)
}

// The sum over rows never crosses a segment: two give the bits of each alone, one of both does not.
func TestBiasGradOfSegments(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 42, dtype: kernels.F32}
	c.start()
	const rows, n = 150, 70
	dy := c.f32(rows, n)
	grad := func(dy kernels.Tensor, into kernels.Tensor, at ...int32) kernels.Tensor {
		d.BiasGrad(into, dy, groupsAt(len(at)-1, at...))
		return into
	}
	joint := grad(dy, rowTensor(kernels.F32, 1, n), sumSegments...)
	one := grad(dy, rowTensor(kernels.F32, 1, n), 0, rows)
	parts := grad(dy.RowRange(70, rows), grad(dy.RowRange(0, 70), rowTensor(kernels.F32, 1, n), 0, 70), 0, rows-70)
	if err := diffRows(parts, joint, false); err != nil {
		t.Error(err)
	}
	if diffRows(one, joint, false) == nil {
		t.Error("segments make no difference: the test cannot fail")
	}
}

func TestBiasRefuses(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	x, bias := rowTensor(kernels.F32, 4, 8), rowTensor(kernels.F32, 1, 8)
	mustPanic(t, "a bias of fewer groups", func() { d.AddBias(x, x, bias, groupsAt(1, 0, 2, 4)) })
	mustPanic(t, "groups of fewer rows", func() { d.BiasGrad(bias, x, groupsAt(1, 0, 3)) })
}
