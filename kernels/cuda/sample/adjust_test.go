//go:build cuda

package sample

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestAdjustLogits(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, vocab := range []int{1, 7, 480, 1024, 3000, 151936} {
		var rows []kernels.Adjustment
		for i := range 12 {
			a := kernels.Adjustment{MinP: []float32{0, 0.05, 0.9, 1}[i%4], Temperature: []float32{1, 0.7, 0}[i%3]}
			for id := i; id < vocab && i%5 > 0; id += 1 + rng.IntN(2*i) {
				a.Logits = append(a.Logits, kernels.LogitAdjustment{ID: int32(id), Bias: float32(rng.NormFloat64()),
					Repetition: []float32{1, 1.3, 0.7}[rng.IntN(3)], Penalty: float32(rng.IntN(3)) * 0.4})
			}
			rows = append(rows, a)
		}
		rows = append(rows, kernels.Adjustment{MinP: 0.5, Temperature: 1e-6}, kernels.Adjustment{})
		logits := cudatest.Strided(kernels.F32, len(rows), vocab, 4)
		broken := cudatest.Strided(kernels.F32, len(rows), vocab, 4)
		for i, raw := range [][]byte{{0xff, 0xff, 0xff, 0xff}, {0, 0, 0x80, 0x7f}, {0, 0, 0x80, 0xff}} {
			for r := range 4 { // a NaN, +Inf and -Inf in some rows
				copy(broken.Raw[4*((4*i+r)*(len(broken.Raw)/4/len(rows))+(i+r)*vocab/9):], raw)
			}
		}
		for _, x := range []cudatest.Operand{logits, broken} {
			cudatest.Both(t, fmt.Sprint("adjusted logits of ", vocab), []cudatest.Operand{x},
				func(d kernels.Device, x []kernels.Tensor) { d.AdjustLogits(x[0], rows) })
		}
	}
}
