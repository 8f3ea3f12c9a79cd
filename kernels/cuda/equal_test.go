//go:build cuda

package cuda

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// The tests of this package run every operation on the CPU reference and on the card and compare the bytes of every
// tensor afterwards.

var reference, card kernels.Device

func TestMain(m *testing.M) {
	def := kernels.Default()
	def.Dot = kernels.DotTC16
	ref, err := cpu.New(def, cpu.Options{})
	if err != nil {
		panic(err)
	}
	gpu, err := New(def, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need a GPU:", err)
		os.Exit(1)
	}
	gpu.Launched = map[string]bool{}
	reference, card = ref, gpu
	code := m.Run()
	some := false // of the tests, or none
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		some = some || flag.Lookup(name).Value.String() != ""
	}
	if code == 0 && !some {
		code = untested(gpu)
	}
	os.Exit(code)
}

// untested names the kernels that no test has run on the card: 1 if there are some.
func untested(d *Device) (code int) {
	for _, name := range slices.Sorted(maps.Keys(d.Kernels())) {
		if !d.Launched[name] {
			fmt.Fprintln(os.Stderr, "no test runs the kernel", name)
			code = 1
		}
	}
	return code
}

// untried is the card as if it had tried nothing; what a test changes of its definition and of what it has tried is
// undone. A copy would not do: two devices of one workspace.
func untried(t *testing.T) *Device {
	d := card.(*Device)
	shapes, def, admitted := d.shapes, d.Def, d.admitted
	t.Cleanup(func() { d.shapes, d.Def, d.admitted = shapes, def, admitted })
	d.shapes, d.admitted = map[string]error{}, nil
	return d
}

// operand is one tensor of an operation and what it holds at first.
type operand struct {
	dtype              kernels.DType
	groups, rows, cols int
	stride             int // 0: cols
	raw                []byte
}

func (o operand) on(d kernels.Device) (view, whole kernels.Tensor) {
	mem := d.Alloc(len(o.raw) + 256)
	whole = kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(mem)), DType: o.dtype, Groups: 1,
		Rows: o.groups * o.rows, Cols: o.stride, Stride: o.stride}
	d.Write(whole, o.raw)
	view = whole
	view.Groups, view.Rows, view.Cols = o.groups, o.rows, o.cols
	return view, whole
}

var rng = rand.New(rand.NewPCG(7, 8))

// normal is random values; strided tensors have 8 more columns.
func normal(dtype kernels.DType, rows, cols int, size float64) operand {
	return grouped(dtype, 1, rows, cols, cols, size)
}

func strided(dtype kernels.DType, rows, cols int, size float64) operand {
	return grouped(dtype, 1, rows, cols, cols+8, size)
}

func grouped(dtype kernels.DType, groups, rows, cols, stride int, size float64) operand {
	o := operand{dtype: dtype, groups: groups, rows: rows, cols: cols, stride: stride}
	for range groups * rows * stride {
		v := float32(rng.NormFloat64() * size)
		if dtype == kernels.F32 {
			b := math.Float32bits(v)
			o.raw = append(o.raw, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		} else {
			b := kernels.RoundBF16(v)
			o.raw = append(o.raw, byte(b), byte(b>>8))
		}
	}
	return o
}

func positive(rows, cols int) operand {
	o := operand{dtype: kernels.F32, groups: 1, rows: rows, cols: cols, stride: cols}
	for range rows * cols {
		b := math.Float32bits(float32(rng.ExpFloat64() + 0.01))
		o.raw = append(o.raw, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
	}
	return o
}

func ints(rows, cols int, v []int32) operand {
	o := operand{dtype: kernels.I32, groups: 1, rows: rows, cols: cols, stride: cols}
	for _, x := range v {
		o.raw = append(o.raw, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
	}
	return o
}

func below(n, limit int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(rng.IntN(limit))
	}
	return v
}

// both runs the operation on both devices and compares every tensor.
func both(t *testing.T, name string, operands []operand, op func(d kernels.Device, x []kernels.Tensor)) {
	t.Helper()
	if n, at := differences(t, operands, op, op); n > 0 {
		t.Errorf("%s: %d bytes differ, first %s", name, n, at)
	}
}

func differences(t testing.TB, operands []operand, onReference, onCard func(d kernels.Device, x []kernels.Tensor)) (
	n int, first string) {
	t.Helper()
	results := [2][][]byte{}
	for i, d := range []kernels.Device{reference, card} {
		var views, wholes []kernels.Tensor
		for _, o := range operands {
			v, w := o.on(d)
			views, wholes = append(views, v), append(wholes, w)
		}
		if i == 0 {
			onReference(d, views)
		} else {
			onCard(d, views)
		}
		for _, w := range wholes {
			raw := make([]byte, w.Bytes())
			d.Read(raw, w)
			results[i] = append(results[i], raw)
		}
		if err := d.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	for o, want := range results[0] {
		got := results[1][o]
		for i := range want {
			if got[i] != want[i] {
				if n == 0 {
					e := i / operands[o].dtype.Size()
					first = fmt.Sprintf("operand %d, row %d, column %d: % x, want % x", o, e/operands[o].stride,
						e%operands[o].stride,
						got[i/4*4:min(i/4*4+4, len(got))], want[i/4*4:min(i/4*4+4, len(want))])
				}
				n++
			}
		}
	}
	return n, first
}

// The comparison can fail.
func TestDifferences(t *testing.T) {
	x := []operand{normal(kernels.BF16, 3, 100, 1), normal(kernels.BF16, 3, 100, 1)}
	n, _ := differences(t, x, func(d kernels.Device, x []kernels.Tensor) {
		d.Scale(x[0], x[1], 1)
	}, func(d kernels.Device, x []kernels.Tensor) { d.Scale(x[0], x[1], 1.01) })
	if n == 0 {
		t.Error("another factor is not noticed")
	}
}

var dtypes = []kernels.DType{kernels.F32, kernels.BF16}
