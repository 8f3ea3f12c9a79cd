//go:build cuda

package cudatest

import (
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/cuda/driver"
)

// Device is a GPU as tests see it.
type Device interface {
	kernels.Device
	Driver() *driver.Context
}

// Reference and Card are the devices that are compared, and GPU is Card's context. [Main] opens them.
var (
	Reference kernels.Device
	Card      Device
	GPU       *driver.Context
)

// opener opens one of the machine's GPUs by a definition.
var opener func(def kernels.Definition, ordinal int) (Device, error)

// Main opens both devices and runs the tests. open is cuda.New, which a package below kernels/cuda can name in an
// external test alone. Where all tests have run, those kernels of the sources count as a failure that no test has run.
func Main[D Device](m *testing.M, open func(def kernels.Definition, ordinal int) (D, error), sources fs.FS) {
	opener = func(def kernels.Definition, ordinal int) (Device, error) { return open(def, ordinal) }
	def := kernels.Default()
	def.Dot = kernels.DotTC16
	var err error
	if Reference, err = cpu.New(def, cpu.Options{}); err != nil {
		panic(err)
	}
	if Card, err = opener(def, 0); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need a GPU:", err)
		os.Exit(1)
	}
	GPU = Card.Driver()
	GPU.Launched = map[string]bool{}
	launched := GPU
	code := m.Run()
	some := false // of the tests, or none
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		some = some || flag.Lookup(name).Value.String() != ""
	}
	if code == 0 && !some {
		code = untested(launched, sources)
	}
	os.Exit(code)
}

// untested names the kernels of sources that no test has run on the card: 1 if there are some.
func untested(c *driver.Context, sources fs.FS) (code int) {
	files := c.Kernels()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if _, err := fs.Stat(sources, files[name]); err == nil && !c.Launched[name] {
			fmt.Fprintln(os.Stderr, "no test runs the kernel", name)
			code = 1
		}
	}
	return code
}

// By runs tests on devices of another definition, then body with the reference of that definition and the card of the
// default one: what differs between them shows that the definitions are told apart.
func By(t *testing.T, def kernels.Definition, tests map[string]func(*testing.T), body func()) {
	t.Helper()
	ref, err := cpu.New(def, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := opener(def, 0)
	if err != nil {
		t.Fatal(err)
	}
	gpu.Driver().Launched = GPU.Launched // what they run counts as tested
	r, c, g := Reference, Card, GPU
	defer func() { Reference, Card, GPU = r, c, g }()
	Reference, Card, GPU = ref, gpu, gpu.Driver()
	for name, run := range tests {
		t.Run(name, run)
	}
	Card, GPU = c, g
	body()
}

// Ex2h runs tests by the card's instruction for 2^x, then body as [By] does.
func Ex2h(t *testing.T, tests map[string]func(*testing.T), body func()) {
	def := Card.Definition()
	def.Exp2 = kernels.Exp2Ex2h
	By(t, def, tests, body)
}

// Roundings runs tests by the roundings and splits that other stacks have, then body as [By] does.
func Roundings(t *testing.T, tests map[string]func(*testing.T), body func()) {
	def := Card.Definition()
	def.Combine, def.Router, def.Norm, def.KeySplit = kernels.ToBF16, kernels.ToBF16, kernels.ToBF16, 192
	By(t, def, tests, body)
}

// Operand is one tensor of an operation and what it holds at first.
type Operand struct {
	DType              kernels.DType
	Groups, Rows, Cols int
	Stride             int    // elements from a row to the next
	Raw                []byte // of all rows, whole
}

// On makes the tensor on a device: what the operation takes, and all rows with what lies between them.
func (o Operand) On(d kernels.Device) (view, whole kernels.Tensor) {
	mem := d.Alloc(len(o.Raw) + 256)
	whole = kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(mem)), DType: o.DType, Groups: 1,
		Rows: o.Groups * o.Rows, Cols: o.Stride, Stride: o.Stride}
	d.Write(whole, o.Raw)
	view = whole
	view.Groups, view.Rows, view.Cols = o.Groups, o.Rows, o.Cols
	return view, whole
}

// Rand draws what operands hold.
var Rand = rand.New(rand.NewPCG(7, 8))

// Normal is random values of a standard deviation.
func Normal(dtype kernels.DType, rows, cols int, size float64) Operand {
	return Grouped(dtype, 1, rows, cols, cols, size)
}

// Strided is Normal with 8 columns between rows.
func Strided(dtype kernels.DType, rows, cols int, size float64) Operand {
	return Grouped(dtype, 1, rows, cols, cols+8, size)
}

// Grouped is Normal of several matrices.
func Grouped(dtype kernels.DType, groups, rows, cols, stride int, size float64) Operand {
	o := Operand{DType: dtype, Groups: groups, Rows: rows, Cols: cols, Stride: stride}
	for range groups * rows * stride {
		v := float32(Rand.NormFloat64() * size)
		if dtype == kernels.F32 {
			b := math.Float32bits(v)
			o.Raw = append(o.Raw, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		} else {
			b := kernels.RoundBF16(v)
			o.Raw = append(o.Raw, byte(b), byte(b>>8))
		}
	}
	return o
}

// Positive is random values above 0.
func Positive(rows, cols int) Operand {
	o := Operand{DType: kernels.F32, Groups: 1, Rows: rows, Cols: cols, Stride: cols}
	for range rows * cols {
		b := math.Float32bits(float32(Rand.ExpFloat64() + 0.01))
		o.Raw = append(o.Raw, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
	}
	return o
}

// Ints is an Operand of these values.
func Ints(rows, cols int, v []int32) Operand {
	o := Operand{DType: kernels.I32, Groups: 1, Rows: rows, Cols: cols, Stride: cols}
	for _, x := range v {
		o.Raw = append(o.Raw, byte(x), byte(x>>8), byte(x>>16), byte(x>>24))
	}
	return o
}

// Below is n numbers from 0 up to limit.
func Below(n, limit int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(Rand.IntN(limit))
	}
	return v
}

// Both runs the operation on both devices and compares every tensor.
func Both(t *testing.T, name string, operands []Operand, op func(d kernels.Device, x []kernels.Tensor)) {
	t.Helper()
	if n, at := Differences(t, operands, op, op); n > 0 {
		t.Errorf("%s: %d bytes differ, first %s", name, n, at)
	}
}

// Differences counts the bytes that differ after two operations, and says where the first is.
func Differences(t testing.TB, operands []Operand, onReference, onCard func(d kernels.Device, x []kernels.Tensor)) (
	n int, first string) {
	t.Helper()
	results := [2][][]byte{}
	for i, d := range []kernels.Device{Reference, Card} {
		var views, wholes []kernels.Tensor
		for _, o := range operands {
			v, w := o.On(d)
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
					e := i / operands[o].DType.Size()
					first = fmt.Sprintf("Operand %d, row %d, column %d: % x, want % x", o, e/operands[o].Stride,
						e%operands[o].Stride,
						got[i/4*4:min(i/4*4+4, len(got))], want[i/4*4:min(i/4*4+4, len(want))])
				}
				n++
			}
		}
	}
	return n, first
}

// DTypes are those of activations.
var DTypes = []kernels.DType{kernels.F32, kernels.BF16}
