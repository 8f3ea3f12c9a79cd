package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/cpu"

	"lockstep/kernels"
)

// engines is an engine for every instruction set that the machine has.
func engines(t testing.TB, dot kernels.DotMode) map[string]*Engine {
	t.Helper()
	all := map[string]*Engine{"portable": New("portable", dot)}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		all["avx2"] = New("avx2", dot)
	} else {
		t.Log("not tested: avx2")
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ {
		all["avx512"] = New("avx512", dot)
	} else {
		t.Log("not tested: avx512")
	}
	return all
}

// matrix is a random [rows, cols] view: rows or columns contiguous, or neither, at a distance.
func matrix(rng *rand.Rand, rows, cols int, value func() float32) View {
	gap := rng.IntN(3)
	v := View{RS: cols + gap, CS: 1}
	switch rng.IntN(3) {
	case 0:
		v.RS, v.CS = 1, rows+gap
	case 1:
		v.RS, v.CS = 2*(cols+gap), 2
	}
	v.X = make([]float32, (rows-1)*v.RS+(cols-1)*v.CS+1)
	for i := range v.X {
		v.X[i] = value()
	}
	return v
}

func (v View) at(i, j int) float32 { return v.X[i*v.RS+j*v.CS] }

// want continues the chains of c, [m, n], one scalar step after the other.
func want(dot kernels.DotMode, c []float32, m, n, k int, a, b View) []float32 {
	out := make([]float32, m*n)
	for i := range m {
		for j := range n {
			acc := c[i*n+j]
			for l := 0; l < k; {
				if dot == kernels.DotFMA {
					acc = kernels.FMA(a.at(i, l), b.at(l, j), acc)
					l++
					continue
				}
				var x, y [steps]float32
				for p := 0; p < steps && l < k; p++ {
					x[p], y[p] = a.at(i, l), b.at(l, j)
					l++
				}
				acc = Step16(acc, &x, &y)
			}
			out[i*n+j] = acc
		}
	}
	return out
}

// mustEqual compares bits, NaN with any NaN.
func mustEqual(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if g, w := got[i], want[i]; math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
			t.Fatalf("%s: element %d is %v (%#x), want %v (%#x)", what, i, g, math.Float32bits(g), w,
				math.Float32bits(w))
		}
	}
}

func bf16(x float32) float32 { return kernels.FromBF16(kernels.RoundBF16(x)) }

func TestTileEqualsChains(t *testing.T) {
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		rng := rand.New(rand.NewPCG(1, 1))
		all := engines(t, dot)
		value := func() float32 { return bf16(float32(rng.NormFloat64())) }
		if dot == kernels.DotFMA {
			value = func() float32 { return float32(rng.NormFloat64()) }
		}
		var s Scratch
		for range 60 {
			m, n, k := 1+rng.IntN(40), 1+rng.IntN(100), 1+rng.IntN(70)
			switch rng.IntN(6) {
			case 0:
				k = 250 + rng.IntN(350) // more than a block of k
			case 1:
				m = 100 + rng.IntN(100) // of rows
			case 2:
				n = 250 + rng.IntN(100) // of columns
			}
			a, b := matrix(rng, m, k, value), matrix(rng, k, n, value)
			start := make([]float32, m*n)
			for i := range start {
				start[i] = value()
			}
			expected := want(dot, start, m, n, k, a, b)
			for name, e := range all {
				ldc := n + rng.IntN(5)
				c := make([]float32, m*ldc)
				for i := range c {
					c[i] = -12345
				}
				copyTile(c, ldc, start, n, m, n)
				e.Tile(&s, c, ldc, m, n, k, a, b)
				what := fmt.Sprintf("%s %s %dx%dx%d, a %d/%d, b %d/%d", dot, name, m, n, k, a.RS, a.CS, b.RS, b.CS)
				for i := range m {
					mustEqual(t, what, c[i*ldc:][:n], expected[i*n:][:n])
					for _, v := range c[i*ldc+n : (i+1)*ldc] {
						if v != -12345 {
							t.Fatalf("%s: wrote beyond row %d", what, i)
						}
					}
				}
			}
		}
	}
}

// Two calls over the parts of k are one call over all, cut anywhere for FMA and at steps for DotTC16.
func TestTileContinuesChains(t *testing.T) {
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		rng := rand.New(rand.NewPCG(2, 2))
		const m, n, k = 13, 45, 330
		value := func() float32 { return bf16(float32(rng.NormFloat64())) }
		a, b := View{X: make([]float32, m*k), RS: k, CS: 1}, View{X: make([]float32, k*n), RS: n, CS: 1}
		for _, v := range []View{a, b} {
			for i := range v.X {
				v.X[i] = value()
			}
		}
		for name, e := range engines(t, dot) {
			var s Scratch
			full := make([]float32, m*n)
			e.Tile(&s, full, n, m, n, k, a, b)
			for _, cut := range []int{16, 80, 256, 320} {
				if dot == kernels.DotFMA {
					cut++
				}
				parts := make([]float32, m*n)
				e.Tile(&s, parts, n, m, n, cut, a, b)
				e.Tile(&s, parts, n, m, n, k-cut, View{X: a.X[cut:], RS: k, CS: 1}, View{X: b.X[cut*n:], RS: n, CS: 1})
				mustEqual(t, fmt.Sprintf("%s %s cut at %d", dot, name, cut), parts, full)
			}
		}
	}
}

// Every kernel must give the one rounding of an FMA: sums half way between two fp32, subnormal, cancelling, infinite.
func TestFMAOfKernels(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	const n = 512
	twice := 0
	for range 40 {
		a, b, c := make([]float32, 6), make([]float32, n), make([]float32, 6*n)
		for i := range a {
			a[i] = awkward(rng)
		}
		for j := range b {
			b[j] = awkward(rng)
		}
		for i := range c {
			c[i] = awkwardSum(rng, a[i/n], b[i%n])
		}
		av, bv := View{X: a, RS: 1, CS: 1}, View{X: b, RS: n, CS: 1}
		expected := want(kernels.DotFMA, c, len(a), n, 1, av, bv)
		for i, w := range expected {
			if naive := float32(math.FMA(float64(a[i/n]), float64(b[i%n]), float64(c[i]))); naive != w && w == w {
				twice++
			}
		}
		for name, e := range engines(t, kernels.DotFMA) {
			var s Scratch
			got := append([]float32(nil), c...)
			e.Tile(&s, got, n, len(a), n, 1, av, bv)
			mustEqual(t, name, got, expected)
		}
	}
	if twice < 100 {
		t.Errorf("only %d sums round twice in fp64: the cases prove too little", twice)
	}
}

// A sum below the normal numbers whose fp64 rounding lies half way between two fp32: rounding it again would go up, to
// even.
func TestFMAOfSubnormals(t *testing.T) {
	ulp := math.Float32frombits(1)
	x, y := float32(math.Ldexp(1+0x1p-23, -75)), float32(math.Ldexp(1-0x1p-23, -75)) // x*y is ulp/2 less a hair
	c := 511 * ulp
	for name, e := range engines(t, kernels.DotFMA) {
		var s Scratch
		for _, sign := range []float32{1, -1} {
			got := []float32{sign * c}
			e.Tile(&s, got, 1, 1, 1, 1, View{X: []float32{sign * x}, RS: 1, CS: 1}, View{X: []float32{y}, RS: 1, CS: 1})
			mustEqual(t, name, got, []float32{sign * c})
		}
	}
}

func awkward(rng *rand.Rand) float32 {
	switch rng.IntN(12) {
	case 0:
		return math.Float32frombits(rng.Uint32()) // anything, NaN and Inf too
	case 1:
		return 0
	case 2:
		return math.Float32frombits(rng.Uint32N(1 << 23)) // subnormal
	case 3, 4:
		return float32(1+rng.IntN(1<<12)) / 4096 // short significands make exact ties
	case 5, 6, 7, 8:
		return 1 + float32(rng.IntN(4)-2)/(1<<23) // products next to a power of two make sums next to a tie
	}
	return float32(rng.NormFloat64() * math.Ldexp(1, rng.IntN(60)-30))
}

// awkwardSum is an addend that makes x*y + c hard to round.
func awkwardSum(rng *rand.Rand, x, y float32) float32 {
	p := float64(x) * float64(y)
	switch rng.IntN(5) {
	case 0:
		return float32(-p)
	case 1: // the product is about half a unit of c
		return float32(math.Ldexp(1+float64(rng.IntN(1<<23))/(1<<23), math.Ilogb(p*1.000001)+24))
	case 2: // c is about half a unit of the product
		return float32(math.Ldexp(p, -24-rng.IntN(30)))
	case 3:
		return math.Float32frombits(rng.Uint32N(1 << 24))
	}
	return awkward(rng)
}
