package cpu

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

var copyOps = []rowOp{
	{name: "Copy", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, same := c.part(c.strided(c.n, c.cols())), c.part(c.strided(c.n, c.cols()))
		d.Copy(same, x)
		wide := rowTensor(kernels.F32, x.Rows, x.Cols)
		d.Copy(wide, x)
		back := c.part(c.strided(c.n, c.cols()))
		d.Copy(back, wide)
		return []kernels.Tensor{same, wide, back}, nil
	}},
	{name: "Zero", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x := c.part(c.strided(c.n, c.cols()))
		d.Zero(x)
		return []kernels.Tensor{x}, nil
	}},
}

func TestCopyAndZeroValues(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 1, dtype: kernels.F32, n: 9}
	c.start()
	x, h := c.strided(9, 100), rowTensor(kernels.BF16, 9, 100)
	d.Copy(h, x)
	for i, v := range rowValues(x) {
		if got := h.BF16s()[i]; got != kernels.RoundBF16(v) {
			t.Fatalf("element %d: %v becomes %#x", i, v, got)
		}
	}
	ints, ints2 := c.ints(50, 1000), rowTensor(kernels.I32, 1, 50)
	d.Copy(ints2, ints)
	if err := diffRows(ints2, ints, false); err != nil {
		t.Error(err)
	}
	d.Zero(ints2)
	d.Zero(x)
	for _, v := range rowValues(x) {
		if v != 0 {
			t.Fatal("a cleared tensor holds", v)
		}
	}
	for _, v := range ints2.I32s() {
		if v != 0 {
			t.Fatal("a cleared tensor holds", v)
		}
	}
	// Groups are matrices one after another.
	g := kernels.Wrap(rowValues(h), 9, 100)
	g.Groups, g.Rows = 3, 3
	copied := rowTensor(kernels.F32, 9, 100)
	copied.Groups, copied.Rows = 3, 3
	d.Copy(copied, g)
	wantBits(t, "groups", copied, rowValues(g))
	mustPanic(t, "a copy to another shape", func() { d.Copy(h, x.RowRange(0, 8)) })
	mustPanic(t, "a copy of numbers to indices", func() { d.Copy(ints, x.RowRange(0, 1).ColRange(0, 50)) })
}

// Writing is by ranges on all threads, and every byte arrives.
func TestWriteIsRead(t *testing.T) {
	d := newRowDevice(t, Auto, 3)
	for _, n := range []int{0, 1, 1<<20 - 1, 5<<19 + 3} {
		raw, back := make([]byte, 2*n), make([]byte, 2*n)
		rand.NewChaCha8([32]byte{byte(n)}).Read(raw)
		x := rowTensor(kernels.BF16, 1, n)
		d.Write(x, raw)
		if d.Read(back, x); !bytes.Equal(back, raw) {
			t.Errorf("%d elements: others are read", n)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("bytes of another length must panic")
		}
	}()
	d.Write(rowTensor(kernels.BF16, 1, 4), make([]byte, 6))
}
