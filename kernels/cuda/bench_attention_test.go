//go:build cuda

package cuda

import (
	"testing"
	"time"

	"lockstep/kernels"
)

// BenchmarkAttention prints the lines of BenchAttention for both definitions of exp2.
func BenchmarkAttention(b *testing.B) {
	for _, exp2 := range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
		b.Run(string(exp2), func(b *testing.B) {
			def := card.Definition()
			def.Exp2 = exp2
			d, err := New(def, 0)
			if err != nil {
				b.Fatal(err)
			}
			for _, r := range d.BenchAttention(200*time.Millisecond, AttentionCases) {
				b.Logf("%s: %.3f ms, %.0f TFLOP/s, %.0f GB/s", r.Case, r.Seconds*1e3, r.Flops/r.Seconds/1e12,
					r.Bytes/r.Seconds/1e9)
			}
			if err := d.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
