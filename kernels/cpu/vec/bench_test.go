package vec

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// BenchmarkLoops reports elements a nanosecond of the loops that attention and log-softmax call on short and long rows.
func BenchmarkLoops(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, set := range append(machineSets(), "portable") {
		o := New(set, kernels.Exp2Poly)
		for _, n := range []int{32, 64, 256, 1024} {
			x, y, z := numbers(rng, n, false), numbers(rng, n, false), make([]float32, n)
			for _, l := range []struct {
				name string
				run  func()
			}{
				{"Max", func() { o.Max(x) }},
				{"Tree", func() { o.Tree(x) }},
				{"TreeDot", func() { o.TreeDot(x, y) }},
				{"Exp2Sub", func() { o.Exp2Sub(z, x, 1, 20) }},
				{"ScaleAdd", func() { o.ScaleAdd(z, 0.5, x, 0.5) }},
				{"SwiGLU", func() { o.SwiGLU(z, x, y) }},
			} {
				b.Run(fmt.Sprintf("%s/%s/%d", set, l.name, n), func(b *testing.B) {
					for b.Loop() {
						l.run()
					}
					b.ReportMetric(float64(n)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "elements/ns")
				})
			}
		}
	}
}
