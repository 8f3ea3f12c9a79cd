package cpu

import (
	"fmt"
	"testing"
	"time"

	"lockstep/kernels"
)

// go test ./kernels/cpu -run '^$' -bench GEMM -benchtime 1x
func BenchmarkGEMM(b *testing.B) {
	for _, isa := range []ISA{AVX512, AVX2, Portable} {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			d, err := New(kernels.Default(), Options{ISA: isa})
			if err != nil {
				b.Logf("not measured: %v", err)
				continue
			}
			for _, c := range GEMMCases {
				b.Run(fmt.Sprintf("%s/%s/%s", isa, dtype, c), func(b *testing.B) {
					for b.Loop() {
						r := d.BenchGEMM(dtype, []GEMMCase{c}, 100*time.Millisecond)[0]
						b.ReportMetric(r.GFLOPS, "GFLOP/s")
						b.ReportMetric(100*r.Ratio, "%peak")
						b.ReportMetric(0, "ns/op")
					}
				})
			}
			if err := d.Close(); err != nil {
				b.Error(err)
			}
		}
	}
}
