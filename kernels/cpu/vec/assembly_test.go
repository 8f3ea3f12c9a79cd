package vec

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/cpu"

	"lockstep/kernels"
)

// machineSets are the instruction sets that this machine has, without the portable one.
func machineSets() []string {
	has := map[string]bool{
		"avx512": cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ,
		"avx2":   cpu.X86.HasAVX2 && cpu.X86.HasFMA,
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(sets)), func(s string) bool { return !has[s] })
}

// loopCase is one loop as the test runs it: n elements, arrays of fp32 and one of bf16 that it reads or writes, and a
// scalar or two.
type loopCase struct {
	name string
	run  func(o *Ops, x [][]float32, h []uint16, n int, a, b float32) float32
}

var loopCases = []loopCase{
	{"Max", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 { return o.Max(x[0][:n]) }},
	{"Tree", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 { return o.Tree(x[0][:n]) }},
	{"TreeDot", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		return o.TreeDot(x[0][:n], x[1])
	}},
	{"TreeScaled", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 {
		return o.TreeScaled(x[0][:n], x[1], a)
	}},
	{"Exp2Sub", func(o *Ops, x [][]float32, _ []uint16, n int, a, b float32) float32 {
		o.Exp2Sub(x[1], x[0][:n], a, b)
		o.Exp2Sub(x[0], x[0][:n], 1, b)
		return 0
	}},
	{"Scale", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 { o.Scale(x[0][:n], a); return 0 }},
	{"ScaleTo", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 {
		o.ScaleTo(x[1], x[0][:n], a)
		return 0
	}},
	{"ScaleAdd", func(o *Ops, x [][]float32, _ []uint16, n int, a, b float32) float32 {
		o.ScaleAdd(x[0], a, x[1][:n], b)
		return 0
	}},
	{"Add", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.Add(x[2], x[0][:n], x[1])
		o.Add(x[0], x[0][:n], x[1])
		o.Add(x[1], x[0][:n], x[1])
		return 0
	}},
	{"Mul", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.Mul(x[2], x[0][:n], x[1])
		o.Mul(x[0], x[0][:n], x[1])
		return 0
	}},
	{"AddMul", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 {
		o.AddMul(x[0], x[1][:n], a, x[2])
		return 0
	}},
	{"NormScale", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 {
		o.NormScale(x[2], x[0][:n], a, x[1])
		o.NormScale(x[0], x[0][:n], a, x[1])
		return 0
	}},
	{"NormGrad", func(o *Ops, x [][]float32, _ []uint16, n int, a, b float32) float32 {
		o.NormGrad(x[2], x[0][:n], x[1], a, b)
		o.NormGrad(x[0], x[0][:n], x[1], a, b)
		return 0
	}},
	{"NormGradAdd", func(o *Ops, x [][]float32, _ []uint16, n int, a, b float32) float32 {
		o.NormGradAdd(x[2], x[0][:n], x[1], a, b)
		return 0
	}},
	{"Rotate", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.Rotate(x[3], x[0][:n], x[1], x[2])
		o.Rotate(x[0], x[0][:n], x[1], x[2])
		return 0
	}},
	{"NormRotate", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 {
		o.NormRotate(x[3], x[0][:n], a, x[4], x[1], x[2])
		o.NormRotate(x[0], x[0][:n], a, x[4], x[1], x[2])
		return 0
	}},
	{"Unrotate", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.Unrotate(x[3], x[0][:n], x[1], x[2])
		o.Unrotate(x[0], x[0][:n], x[1], x[2])
		return 0
	}},
	{"UnrotateMul", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.UnrotateMul(x[3], x[0][:n], x[4], x[1], x[2])
		o.UnrotateMul(x[0], x[0][:n], x[4], x[1], x[2])
		return 0
	}},
	{"UnrotateAddMul", func(o *Ops, x [][]float32, _ []uint16, n int, a, _ float32) float32 {
		h := n / 2
		o.UnrotateAddMul(x[0], x[0][h:], x[1], x[1][h:], x[2], x[2][h:], x[3][:h], x[4], a)
		return 0
	}},
	{"SwiGLU", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.SwiGLU(x[2], x[0][:n], x[1])
		o.SwiGLU(x[0], x[0][:n], x[1])
		return 0
	}},
	{"SwiGLUGrad", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.SwiGLUGrad(x[3], x[4], x[2], x[0][:n], x[1])
		o.SwiGLUGrad(x[0], x[1], x[2], x[0][:n], x[1])
		return 0
	}},
	{"AdamW", func(o *Ops, x [][]float32, _ []uint16, n int, a, b float32) float32 {
		for i := range x[2] {
			x[2][i] = float32(math.Abs(float64(x[2][i]))) // the second moment has no sign
		}
		o.AdamW(x[0][:n], x[1], x[2], x[3], a, kernels.AdamW{
			LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Correction1: 0.271, Correction2: 0.0975,
		})
		return 0
	}},
	{"Largest", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.Largest(x[0][:n], x[1][:n])
		return 0
	}},
	{"BlockLargest", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.BlockLargest(x[1], x[0][:n])
		return 0
	}},
	{"MXFP8", func(o *Ops, x [][]float32, _ []uint16, n int, _, _ float32) float32 {
		o.BlockLargest(x[1], x[0][:n])
		o.MXFP8(x[2], x[0][:n], x[1])
		o.MXFP8(x[0], x[0][:n], x[1])
		return 0
	}},
	{"Widen", func(o *Ops, x [][]float32, h []uint16, n int, _, _ float32) float32 { o.Widen(x[0], h[:n]); return 0 }},
	{"Narrow", func(o *Ops, x [][]float32, h []uint16, n int, _, _ float32) float32 {
		o.Narrow(h, x[0][:n])
		return 0
	}},
}

// Every loop of every instruction set gives the bits of its Go version and writes nothing beyond the end: all lengths
// from 0 to 600 and some that wrap the tree's lanes more than twice, on ordinary numbers and on ones with zeros,
// subnormals, infinities and NaN.
func TestAssembly(t *testing.T) {
	for _, mode := range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
		want := New("portable", mode)
		for _, set := range machineSets() {
			got := New(set, mode)
			for _, w := range loopCases {
				if mode == kernels.Exp2Ex2h && !slices.Contains([]string{"Exp2Sub", "SwiGLU", "SwiGLUGrad"}, w.name) {
					continue // the same loop
				}
				t.Run(fmt.Sprintf("%s/%s/%s", set, w.name, mode), func(t *testing.T) {
					compareLengths(t, want, got, w)
				})
			}
		}
	}
}

func compareLengths(t *testing.T, want, got *Ops, w loopCase) {
	rng := rand.New(rand.NewPCG(7, 8))
	for n := range 640 {
		if n >= 600 {
			n = 600 + rng.IntN(2000)
		}
		for special := range 2 {
			compareLoops(t, want, got, w, n, special == 1, rng)
		}
	}
}

func compareLoops(t *testing.T, want, got *Ops, w loopCase, n int, special bool, rng *rand.Rand) {
	const guard = 40
	var wx, gx [][]float32
	for range 5 {
		x := numbers(rng, n+guard, special)
		wx, gx = append(wx, x), append(gx, slices.Clone(x))
	}
	wh := make([]uint16, n+guard)
	for i := range wh {
		wh[i] = uint16(rng.Uint32())
	}
	gh := slices.Clone(wh)
	a, b := rng.Float32()*2, numbers(rng, 1, special)[0]
	wr, gr := w.run(want, wx, wh, n, a, b), w.run(got, gx, gh, n, a, b)
	if !same(wr, gr) {
		t.Fatalf("n %d: %v (%#x), want %v (%#x)", n, gr, math.Float32bits(gr), wr, math.Float32bits(wr))
	}
	for k := range wx {
		for i := range wx[k] {
			if !same(wx[k][i], gx[k][i]) {
				t.Fatalf("n %d: array %d, element %d: %v (%#x), want %v (%#x)", n, k, i, gx[k][i],
					math.Float32bits(gx[k][i]), wx[k][i], math.Float32bits(wx[k][i]))
			}
		}
	}
	if !slices.Equal(wh, gh) {
		t.Fatalf("n %d: bf16 differ", n)
	}
}

// same compares bits; any NaN equals any other, since the hardware chooses among the payloads of two operands.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// numbers are random over many exponents; special ones are often zeros, subnormals, infinities, NaN and equal to one
// another.
func numbers(rng *rand.Rand, n int, special bool) []float32 {
	odd := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, 88, -88, -126, -127, 0.5, -0.5, 1e-40, -1e-45, math.MaxFloat32, 3e38,
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), math.Float32frombits(0xffffffff),
		math.Float32frombits(0x7fc001ff),
	}
	if rng.IntN(2) == 0 {
		odd = odd[:12] // a row without overflow, or its NaN would hide the rest of a sum
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(9)-4)))
		if special && rng.IntN(4) == 0 {
			x[i] = odd[rng.IntN(len(odd))]
		}
	}
	return x
}
