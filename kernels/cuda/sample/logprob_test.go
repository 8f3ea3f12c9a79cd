//go:build cuda

package sample

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// A NaN among the logits of a row, wherever it is, makes its log-probability NaN, and its neighbours what they are
// without it.
func TestLogProbNotANumber(t *testing.T) {
	const rows = 3
	for _, c := range [][2]int{{5, 4}, {480, 0}, {1024, 700}, {3001, 2999}, {5000, 2048}, {40000, 0}, {40000, 39999}} {
		vocab, at := c[0], c[1]
		logits := cudatest.Normal(kernels.F32, rows, vocab, 1)
		binary.LittleEndian.PutUint32(logits.Raw[4*(vocab+at):], math.Float32bits(float32(math.NaN())))
		var got [2][]float32
		for i, d := range []kernels.Device{cudatest.Reference, cudatest.Card} {
			got[i] = make([]float32, rows)
			var x [4]kernels.Tensor
			for j, o := range []cudatest.Operand{cudatest.Normal(kernels.F32, 1, rows, 1),
				cudatest.Normal(kernels.F32, rows, 2, 1), logits, cudatest.Ints(1, rows, []int32{1, 1, 1})} {
				x[j], _ = o.On(d)
			}
			d.LogProb(x[0], x[1], x[2], x[3], kernels.Tensor{})
			raw := make([]byte, 4*rows)
			d.Read(raw, x[0])
			for r := range got[i] {
				got[i][r] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*r:]))
			}
			if got[i][1] == got[i][1] || got[i][0] != got[0][0] || got[i][2] != got[0][2] {
				t.Errorf("%s: a NaN at %d of %d: log-probabilities %v, want NaN for the row in the middle alone, as %v",
					d.Name(), at, vocab, got[i], got[0])
			}
		}
	}
}

func TestLogProb(t *testing.T) {
	// of 3001, rows begin anywhere
	for _, s := range [][2]int{{1, 5}, {40, 480}, {9, 1024}, {6, 3001}, {7, 5000}, {3, 151936}} {
		rows, vocab := s[0], s[1]
		targets := cudatest.Below(rows, vocab)
		if rows > 1 {
			targets[1] = -1
		}
		for _, dtype := range cudatest.DTypes {
			for _, tempered := range []bool{false, true} {
				cudatest.Both(t, fmt.Sprint("log prob, tempered ", tempered),
					[]cudatest.Operand{cudatest.Normal(kernels.F32, 1, rows, 1),
						cudatest.Normal(kernels.F32, rows, 2, 1), cudatest.Strided(kernels.F32, rows, vocab, 4),
						cudatest.Ints(1, rows, targets),
						cudatest.Normal(kernels.F32, 1, rows, 1), cudatest.Normal(dtype, rows, vocab, 1),
						cudatest.Positive(1, rows)},
					func(d kernels.Device, x []kernels.Tensor) {
						var inv kernels.Tensor
						if tempered {
							inv = x[6]
						}
						d.LogProb(x[0], x[1], x[2], x[3], inv)
						d.LogProbBackward(x[5], x[4], x[1], x[2], x[3], inv)
					})
			}
		}
	}
	zeros := cudatest.Normal(kernels.F32, 2, 2048, 1) // -0, whose largest is +0
	for i := range zeros.Raw {
		zeros.Raw[i] = byte(i % 4 / 3 * 0x80)
	}
	cudatest.Both(t, "log prob of zeros", []cudatest.Operand{cudatest.Normal(kernels.F32, 1, 2, 1),
		cudatest.Normal(kernels.F32, 2, 2, 1), zeros,
		cudatest.Ints(1, 2, []int32{7, 2047})},
		func(d kernels.Device, x []kernels.Tensor) { d.LogProb(x[0], x[1], x[2], x[3], kernels.Tensor{}) })
}
