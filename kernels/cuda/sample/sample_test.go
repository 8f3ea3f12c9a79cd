//go:build cuda

package sample

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestSample(t *testing.T) {
	for _, vocab := range []int{1, 7, 480, 1024, 3000, 151936} {
		var rows []kernels.Sampling
		for i, s := range []kernels.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1}, {Temperature: 0.7, TopP: 0.5,
			TopK: 20}, {Temperature: 1.3, TopK: 3, TopP: 1}, {Temperature: 0.3, TopP: 0.9},
			{Temperature: 1e-38, TopP: 1}} {
			for j := range 4 {
				s.Seed, s.Request, s.Index = uint64(i), uint64(j), uint64(i+j)
				rows = append(rows, s)
			}
		}
		coarse := cudatest.Strided(kernels.F32, len(rows), vocab, 4)
		for i := range coarse.Raw { // ties, and every other logit -Inf
			coarse.Raw[i] &= [4]byte{0, 0, 0xc0, 0xff}[i%4]
			if vocab > 1 && i/4%2 == 1 {
				coarse.Raw[i] = [4]byte{0, 0, 0x80, 0xff}[i%4]
			}
		}
		for _, logits := range []cudatest.Operand{cudatest.Normal(kernels.F32, len(rows), vocab, 4), coarse} {
			cudatest.Both(t, fmt.Sprint("sample of ", vocab),
				[]cudatest.Operand{cudatest.Ints(1, len(rows), make([]int32, len(rows))), logits},
				func(d kernels.Device, x []kernels.Tensor) {
					d.Sample(x[0], x[1], rows)
				})
		}
	}
}

// A draw of exactly the sum of the first block, by the seed whose number is 1/2.
func TestSampleAtTheEdge(t *testing.T) {
	rows, block := []kernels.Sampling{{Temperature: 1, TopP: 1, Seed: 515707}}, kernels.Default().VocabBlock
	logits := cudatest.Normal(kernels.F32, 1, 2*block, 0)
	cudatest.Both(t, "sample at an edge", []cudatest.Operand{cudatest.Ints(1, 1, []int32{-1}), logits},
		func(d kernels.Device, x []kernels.Tensor) {
			d.Sample(x[0], x[1], rows)
		})
}

// A row with a NaN or +Inf, or of nothing else, gives -1, and the rows next to it what they give without it.
func TestSampleNotFinite(t *testing.T) {
	for _, vocab := range []int{5, 1024, 3000} {
		for _, s := range []kernels.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.4},
			{Temperature: 1, TopP: 1, TopK: 3}, {Temperature: 1, TopP: 0.4, TopK: 900}} {
			for _, places := range [][2]int{{0, 1}, {vocab - 1, vocab}, {vocab / 2, vocab/2 + 1}, {0, vocab}} {
				for _, x := range [][]byte{{0xff, 0xff, 0xff, 0xff}, {0, 0, 0x80, 0x7f}} {
					logits := cudatest.Normal(kernels.F32, 3, vocab, 1)
					for i := vocab + places[0]; i < vocab+places[1]; i++ {
						copy(logits.Raw[4*i:], x)
					}
					cudatest.Both(t, fmt.Sprintf("sample of %d, %x at %v", vocab, x, places),
						[]cudatest.Operand{cudatest.Ints(1, 3, make([]int32, 3)), logits},
						func(d kernels.Device, x []kernels.Tensor) {
							d.Sample(x[0], x[1], []kernels.Sampling{s, s, s})
						})
				}
			}
		}
	}
}
