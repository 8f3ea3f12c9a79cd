package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

var dropoutOps = []rowOp{{name: "Dropout", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
	x, out := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols()))
	o := kernels.Dropout{Probability: 0.3, Seed: 5, Row: uint32(c.from)}
	d.Dropout(out, x, o)
	d.Dropout(x, x, o)
	return []kernels.Tensor{out, x}, nil
}}}

// Rows keep what the words of their own numbers say, so that a part of rows is that part of all; as many fall out as
// are to.
func TestDropout(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	const rows, cols = 64, 1027
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(i%7) + 1
	}
	x[3] = float32(math.NaN())
	in, all := kernels.Wrap(x, rows, cols), kernels.Wrap(make([]float32, rows*cols), rows, cols)
	o := kernels.Dropout{Probability: 0.25, Seed: 1 << 40, Step: 3, Layer: 2, Row: 100}
	d.Dropout(all, in, o)
	zeros := 0
	for i, v := range all.F32s() {
		r, c := i/cols, i%cols
		words := kernels.Philox([4]uint32{uint32(c / 4), uint32(100 + r), 2, 3}, [2]uint32{0, 1 << 8})
		switch kept := words[c%4] >= 1<<30; {
		case !kept && (v != 0 || math.Signbit(float64(v))), kept && v == v && v != x[i]*float32(1/float32(0.75)):
			t.Fatalf("row %d, column %d: %v of %v, kept: %v", r, c, v, x[i], kept)
		case !kept:
			zeros++
		}
	}
	if share := float64(zeros) / (rows * cols); math.Abs(share-0.25) > 0.006 { // 3.5 standard deviations
		t.Errorf("%.4f of the elements are 0, want a quarter", share)
	}
	part := kernels.Wrap(make([]float32, 5*cols), 5, cols)
	later := o
	later.Row += 9
	d.Dropout(part, in.RowRange(9, 14), later)
	wantBits(t, "rows from 9 on", part, all.F32s()[9*cols:14*cols])
	for name, change := range map[string]func(o *kernels.Dropout){
		"seed": func(o *kernels.Dropout) { o.Seed++ }, "step": func(o *kernels.Dropout) { o.Step++ },
		"layer": func(o *kernels.Dropout) { o.Layer++ }, "row": func(o *kernels.Dropout) { o.Row += rows },
	} {
		other := o
		change(&other)
		again := kernels.Wrap(make([]float32, rows*cols), rows, cols)
		d.Dropout(again, in, other)
		same := 0
		for i, v := range again.F32s() {
			if (v == 0) == (all.F32s()[i] == 0) {
				same++
			}
		}
		if share := float64(same) / (rows * cols); math.Abs(share-0.625) > 0.01 {
			t.Errorf("another %s: %.3f of the elements are alike, want 0.625", name, share)
		}
	}
}
