package cpu

import (
	"fmt"
	"testing"
	"time"

	"lockstep/kernels"
)

// gemmCases are shapes of training and decoding small models.
var gemmCases = []GEMMCase{
	{Op: "MatMul", Rows: 1024, Cols: 1024, Depth: 1024},
	{Op: "MatMul", Rows: 4096, Cols: 768, Depth: 256},
	{Op: "MatMulT", Rows: 4096, Cols: 256, Depth: 256},
	{Op: "WeightGrad", Rows: 768, Cols: 256, Depth: 4096},
	{Op: "MatMul", Groups: 16, Rows: 512, Cols: 256, Depth: 256},
	{Op: "MatMul", Groups: 16, Rows: 512, Cols: 256, Depth: 128},
	{Op: "MatMulT", Groups: 16, Rows: 512, Cols: 256, Depth: 128},
	{Op: "WeightGrad", Groups: 16, Rows: 256, Cols: 256, Depth: 512},
	{Op: "MatMul", Rows: 4096, Cols: 16, Depth: 256},
	{Op: "MatMul", Rows: 4, Cols: 1024, Depth: 1024},
	{Op: "MatMul", Rows: 1, Cols: 4096, Depth: 1024},
}

// go test ./kernels/cpu -run '^$' -bench GEMM -benchtime 1x
func BenchmarkGEMM(b *testing.B) {
	for _, isa := range []ISA{AVX512, AVX2, Portable} {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			d, err := New(kernels.Default(), Options{ISA: isa})
			if err != nil {
				b.Logf("not measured: %v", err)
				continue
			}
			for _, c := range gemmCases {
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
