package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// rowCase is one call of a row-wise operation on tensors that follow from the seed: rows [from, to) of a batch of n.
type rowCase struct {
	seed        uint64
	dtype       kernels.DType
	n, from, to int
	size        int // selects the number of columns
	coarse      bool
	rng         *rand.Rand
}

// rowOp runs an operation on a case. rows are outputs with one row for each of the case's rows, other are all others.
type rowOp struct {
	name string
	run  func(d *Device, c *rowCase) (rows, other []kernels.Tensor)
	// uncut: the operation's inputs do not allow it to run on a part of the batch.
	uncut bool
}

func rowOps() []rowOp {
	return slices.Concat(copyOps, embedOps, addOps, dropoutOps, biasOps, normOps, ropeOps, sinkOps,
		swigluOps, clampedOps,
		routeOps,
		dispatchOps, combineOps, adamwOps,
		decayOps, gatedNormOps, gateOps)
}

// roundedDefinition has every rounding of kernels.Definition. Each affects some of roundedOps.
func roundedDefinition() kernels.Definition {
	def := kernels.Default()
	def.Combine, def.Router, def.Norm = kernels.ToBF16, kernels.ToBF16, kernels.ToBF16
	return def
}

func roundedOps() []rowOp { return slices.Concat(normOps, ropeOps, routeOps, combineOps) }

// eachRowDefinition checks a property of rows by the default definition, and by roundedDefinition for the operations
// that it affects.
func eachRowDefinition(t *testing.T, f func(t *testing.T, def kernels.Definition, ops []rowOp)) {
	t.Run("default", func(t *testing.T) { f(t, kernels.Default(), rowOps()) })
	t.Run("rounded", func(t *testing.T) { f(t, roundedDefinition(), roundedOps()) })
}

var rowSizes = []int{16, 24, 64, 100, 300}

func (c *rowCase) cols() int { return rowSizes[c.size] }

// start makes the case draw the same tensors again.
func (c *rowCase) start() { c.rng = rand.New(rand.NewPCG(c.seed, uint64(c.size))) }

// strided is [rows, cols] of random numbers with gaps between rows, which hold a pattern that must stay.
func (c *rowCase) strided(rows, cols int) kernels.Tensor {
	const gap = 8
	t := rowTensor(c.dtype, rows, cols+gap)
	for i := range rows * (cols + gap) {
		c.set(t, i, 77)
	}
	t = t.ColRange(0, cols)
	for r := range rows {
		for j := range cols {
			c.set(t, r*t.Stride+j, c.draw())
		}
	}
	return t
}

// f32 is contiguous [rows, cols] in fp32, whatever the case's storage.
func (c *rowCase) f32(rows, cols int) kernels.Tensor {
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = c.draw()
	}
	return kernels.Wrap(x, rows, cols)
}

// weight is contiguous [rows, cols] in the case's storage.
func (c *rowCase) weight(rows, cols int) kernels.Tensor {
	t := rowTensor(c.dtype, rows, cols)
	for i := range rows * cols {
		c.set(t, i, c.draw())
	}
	return t
}

func (c *rowCase) draw() float32 {
	x := float32(c.rng.NormFloat64() * math.Exp2(float64(c.rng.IntN(5)-2)))
	if c.coarse {
		x = kernels.FromBF16(kernels.RoundBF16(x))
	}
	return x
}

func (c *rowCase) set(t kernels.Tensor, i int, x float32) {
	if t.DType == kernels.BF16 {
		t.BF16s()[i] = kernels.RoundBF16(x)
	} else {
		t.F32s()[i] = x
	}
}

// ints is n indices below limit.
func (c *rowCase) ints(n, limit int) kernels.Tensor {
	x := make([]int32, n)
	for i := range x {
		x[i] = c.rng.Int32N(int32(limit))
	}
	return kernels.WrapI32(x)
}

// part is the case's rows of t; partOf its elements of a vector.
func (c *rowCase) part(t kernels.Tensor) kernels.Tensor   { return t.RowRange(c.from, c.to) }
func (c *rowCase) partOf(t kernels.Tensor) kernels.Tensor { return t.ColRange(c.from, c.to) }

func rowTensor(d kernels.DType, rows, cols int) kernels.Tensor {
	if d == kernels.I32 {
		return kernels.WrapI32(make([]int32, rows*cols)).Reshape(rows, cols)
	}
	t := kernels.Wrap(make([]float32, rows*cols), rows, cols)
	t.DType = d // bf16 takes half of the memory
	return t
}

// rowBits is the bits of row r, fp32 rounded to bf16 first where round is set.
func rowBits(t kernels.Tensor, r int, round bool) []uint32 {
	out := make([]uint32, t.Cols)
	for j := range out {
		i := r*t.Stride + j
		switch {
		case t.DType == kernels.I32:
			out[j] = uint32(t.I32s()[i])
		case t.DType == kernels.BF16:
			out[j] = uint32(t.BF16s()[i])
		case round:
			out[j] = uint32(kernels.RoundBF16(t.F32s()[i]))
		default:
			out[j] = math.Float32bits(t.F32s()[i])
		}
	}
	return out
}

// rowValues is all elements of t as fp32, row by row.
func rowValues(t kernels.Tensor) []float32 {
	var out []float32
	for r := range t.Groups * t.Rows {
		for j := range t.Cols {
			if t.DType == kernels.BF16 {
				out = append(out, kernels.FromBF16(t.BF16s()[r*t.Stride+j]))
			} else {
				out = append(out, t.F32s()[r*t.Stride+j])
			}
		}
	}
	return out
}

// diffRows reports the first difference of two tensors' bits.
func diffRows(got, want kernels.Tensor, round bool) error {
	if got.Groups*got.Rows != want.Groups*want.Rows || got.Cols != want.Cols {
		return fmt.Errorf("%s against %s", got, want)
	}
	for r := range got.Groups * got.Rows {
		g, w := rowBits(got, r, round), rowBits(want, r, round)
		for j := range g {
			if g[j] != w[j] {
				return fmt.Errorf("%s: row %d, column %d: %#x, want %#x", got, r, j, g[j], w[j])
			}
		}
		if pad := got.Stride - got.Cols; pad == 8 && got.DType != kernels.I32 && r+1 < got.Rows {
			got.Cols = got.Stride
			for _, v := range rowBits(got, r, true)[got.Stride-pad:] {
				if v != uint32(kernels.RoundBF16(77)) {
					return fmt.Errorf("%s: the gap after row %d was written", got, r)
				}
			}
			got.Cols -= pad
		}
	}
	return nil
}

func newRowDevice(t testing.TB, isa ISA, threads int) *Device {
	t.Helper()
	return newDevice(t, kernels.Default(), isa, threads)
}

// newEx2hDevice has the other exp2.
func newEx2hDevice(t testing.TB) *Device {
	t.Helper()
	def := kernels.Default()
	def.Exp2 = kernels.Exp2Ex2h
	return newDevice(t, def, Auto, 2)
}

func newDevice(t testing.TB, def kernels.Definition, isa ISA, threads int) *Device {
	t.Helper()
	d, err := New(def, Options{Threads: threads, ISA: isa})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// rowSets are the instruction sets of this machine.
func rowSets() []ISA {
	var sets []ISA
	for _, isa := range []ISA{Portable, AVX2, AVX512} {
		if _, err := choose(isa); err == nil {
			sets = append(sets, isa)
		}
	}
	return sets
}

func eachRowCase(t *testing.T, ops []rowOp, f func(t *testing.T, op rowOp, c rowCase)) {
	for _, op := range ops {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			t.Run(fmt.Sprintf("%s/%s", op.name, dtype), func(t *testing.T) {
				for size := range rowSizes {
					for _, n := range []int{1, 3, 70} {
						f(t, op, rowCase{seed: uint64(n), dtype: dtype, n: n, to: n, size: size})
					}
				}
			})
		}
	}
}

func (op rowOp) do(d *Device, c rowCase) (rows, other []kernels.Tensor) {
	c.start()
	return op.run(d, &c)
}

// The same bits on every instruction set, and on one, two and three threads.
func TestRowsOverDevices(t *testing.T) { eachRowDefinition(t, rowsOverDevices) }

func rowsOverDevices(t *testing.T, def kernels.Definition, ops []rowOp) {
	reference := newDevice(t, def, Portable, 1)
	var devices []*Device
	for i, isa := range rowSets() {
		devices = append(devices, newDevice(t, def, isa, 3-i))
	}
	eachRowCase(t, ops, func(t *testing.T, op rowOp, c rowCase) {
		wantRows, wantWhole := op.do(reference, c)
		for _, d := range devices {
			gotRows, gotWhole := op.do(d, c)
			for i, got := range append(gotRows, gotWhole...) {
				if err := diffRows(got, append(wantRows, wantWhole...)[i], false); err != nil {
					t.Fatalf("%s, %d rows: output %d: %v", d.Name(), c.n, i, err)
				}
			}
		}
	})
}

// A row has the same bits alone, in a part of the batch and in the full batch.
func TestRowsOverBatches(t *testing.T) { eachRowDefinition(t, rowsOverBatches) }

func rowsOverBatches(t *testing.T, def kernels.Definition, ops []rowOp) {
	d := newDevice(t, def, Auto, 2)
	eachRowCase(t, ops, func(t *testing.T, op rowOp, c rowCase) {
		if op.uncut {
			return
		}
		want, _ := op.do(d, c)
		for _, cut := range [][2]int{{0, 1}, {c.n - 1, c.n}, {c.n / 3, c.n/3 + 1}, {c.n / 4, c.n}, {0, (c.n + 1) / 2}} {
			part := c
			part.from, part.to = cut[0], cut[1]
			got, _ := op.do(d, part)
			for i := range got {
				if err := diffRows(got[i], part.cut(want[i]), false); err != nil {
					t.Fatalf("rows %v of %d: output %d: %v", cut, c.n, i, err)
				}
			}
		}
	})
}

// cut is the case's rows of an output for the full batch, which may be a vector.
func (c *rowCase) cut(t kernels.Tensor) kernels.Tensor {
	if t.Rows == 1 && t.Cols == c.n && c.n > 1 {
		return c.partOf(t)
	}
	return c.part(t)
}

// BF16 storage is fp32 arithmetic on the widened numbers, rounded once at the end.
func TestRowsInBF16(t *testing.T) { eachRowDefinition(t, rowsInBF16) }

func rowsInBF16(t *testing.T, def kernels.Definition, ops []rowOp) {
	d := newDevice(t, def, Auto, 2)
	eachRowCase(t, ops, func(t *testing.T, op rowOp, c rowCase) {
		if c.dtype != kernels.BF16 {
			return
		}
		c.coarse = true
		gotRows, gotWhole := op.do(d, c)
		c.dtype = kernels.F32
		wantRows, wantWhole := op.do(d, c)
		for i, got := range append(gotRows, gotWhole...) {
			if err := diffRows(got, append(wantRows, wantWhole...)[i], got.DType == kernels.BF16); err != nil {
				t.Fatalf("%d rows: output %d: %v", c.n, i, err)
			}
		}
	})
}

// Each rounding changes bits of its operations and of no others.
func TestRoundingsDiffer(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*kernels.Definition)
		ops  []rowOp
	}{
		{"combine", func(d *kernels.Definition) { d.Combine = kernels.ToBF16 }, combineOps[:1]},
		{"router", func(d *kernels.Definition) { d.Router = kernels.ToBF16 }, routeOps},
		{"norm", func(d *kernels.Definition) { d.Norm = kernels.ToBF16 }, []rowOp{normOps[0], ropeOps[0]}},
	} {
		def := kernels.Default()
		c.set(&def)
		plain, rounded := newRowDevice(t, Auto, 2), newDevice(t, def, Auto, 2)
		for _, op := range rowOps() {
			differs := false
			for size := range rowSizes {
				rc := rowCase{seed: 3, dtype: kernels.BF16, n: 70, to: 70, size: size}
				want, _ := op.do(plain, rc)
				got, _ := op.do(rounded, rc)
				for i := range got {
					differs = differs || diffRows(got[i], want[i], false) != nil
				}
			}
			if concerned := slices.ContainsFunc(c.ops, func(o rowOp) bool {
				return o.name == op.name
			}); differs != concerned {
				t.Errorf("%s in bf16: %s differs from the default: %v, want %v", c.name, op.name, differs, concerned)
			}
		}
	}
}

// checkGradient compares got with central differences of a float64 loss at p, the error in units of the largest
// derivative.
func checkGradient(t *testing.T, name string, p []float64, loss func(p []float64) float64, got []float32) {
	t.Helper()
	const step, bound = 1e-5, 2e-5
	if len(p) != len(got) {
		t.Fatalf("%s: %d derivatives of %d parameters", name, len(got), len(p))
	}
	want, largest := make([]float64, len(p)), 0.0
	for i := range p {
		at := p[i]
		p[i] = at + step
		up := loss(p)
		p[i] = at - step
		want[i] = (up - loss(p)) / (2 * step)
		p[i] = at
		largest = max(largest, math.Abs(want[i]))
	}
	if largest == 0 {
		t.Fatalf("%s: every derivative is 0", name)
	}
	for i, g := range got {
		if math.Abs(float64(g)-want[i]) > bound*largest || g != g {
			t.Fatalf("%s: derivative %d is %v, want %v (largest %v)", name, i, g, want[i], largest)
		}
	}
}

func to64(t kernels.Tensor) []float64 {
	var out []float64
	for _, v := range rowValues(t) {
		out = append(out, float64(v))
	}
	return out
}

// mustPanic runs f, which must panic.
func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

// wantBits compares fp32 with a reference that follows the definition line by line.
func wantBits(t *testing.T, what string, got kernels.Tensor, want []float32) {
	t.Helper()
	for i, g := range rowValues(got) {
		if math.Float32bits(g) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %v, want %v", what, i, g, want[i])
		}
	}
}

// oneSegment is the segments of a batch that has one.
func oneSegment(t kernels.Tensor) []int32 { return []int32{0, int32(t.Rows)} }
