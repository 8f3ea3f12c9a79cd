package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// Every loop of exp2 "ex2h" gives the bits of kernels.Exp2H: on its whole grid, on arguments finer than it, and on any
// negative number or NaN.
func TestEx2hLoops(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	for _, set := range append(machineSets(), "portable") {
		o := New(set, kernels.Exp2Ex2h)
		x, y := make([]float32, 1<<12+7), make([]float32, 1<<12+7)
		for _, kind := range []struct {
			name   string
			n      int
			number func(i int) float32
		}{
			{"grid", 1<<23 + 1, func(i int) float32 { return -float32(i) / (1 << 23) }},
			{"finer", 1 << 20, func(int) float32 {
				return -rng.Float32() * float32(math.Exp2(float64(rng.IntN(40)-32)))
			}},
			{"any", 1 << 21, func(int) float32 { return math.Float32frombits(rng.Uint32() | 1<<31) }},
		} {
			for from := 0; from < kind.n; from += len(x) {
				for i := range x {
					x[i] = kind.number(min(from+i, kind.n-1))
				}
				o.Exp2Sub(y, x, 1, 0)
				for i, v := range x {
					if want := kernels.Exp2H(v); math.Float32bits(y[i]) != math.Float32bits(want) {
						t.Fatalf("%s, %s: %b (%#x) gives %#x, want %#x", set, kind.name, v, math.Float32bits(v),
							math.Float32bits(y[i]), math.Float32bits(want))
					}
				}
			}
		}
	}
}

// BenchmarkExp2 holds the two modes against each other, in nanoseconds an element.
func BenchmarkExp2(b *testing.B) {
	x, y := numbers(rand.New(rand.NewPCG(1, 1)), 1024, false), make([]float32, 1024)
	for _, set := range append(machineSets(), "portable") {
		for _, mode := range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
			o := New(set, mode)
			for _, l := range []struct {
				name string
				run  func()
			}{{"Exp2Sub", func() { o.Exp2Sub(y, x, 1, 20) }}, {"SwiGLU", func() { o.SwiGLU(y, x, x) }}} {
				b.Run(fmt.Sprintf("%s/%s/%s", set, l.name, mode), func(b *testing.B) {
					for b.Loop() {
						l.run()
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1024/float64(b.N), "ns/element")
				})
			}
		}
	}
}
