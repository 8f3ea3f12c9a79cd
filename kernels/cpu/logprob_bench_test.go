package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// BenchmarkLogProb reports the bytes of logits read, and written by the backward; copy is the machine's own measure.
func BenchmarkLogProb(b *testing.B) {
	dev, err := New(kernels.Default(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	rng := rand.New(rand.NewPCG(1, 1))
	for _, vocab := range []int{512, 151_936} {
		rows := (1 << 22) / vocab
		logits := attnTensor(kernels.F32, attnRandom(rng, kernels.F32, rows*vocab, 3), rows, vocab, 0)
		lp, stats, ids := kernels.Wrap(make([]float32, rows), 1, rows), kernels.Wrap(make([]float32, 2*rows), rows, 2),
			kernels.WrapI32(make([]int32, rows))
		dlogits := attnTensor(kernels.F32, nil, rows, vocab, 0)
		b.Run(fmt.Sprintf("copy/V=%d", vocab), func(b *testing.B) {
			b.SetBytes(int64(8 * rows * vocab))
			for b.Loop() {
				dev.Copy(dlogits, logits)
			}
		})
		for _, temperature := range []float32{1, 0.7} {
			inv := kernels.Wrap(slices.Repeat([]float32{kernels.Inverse(temperature)}, rows), 1, rows)
			b.Run(fmt.Sprintf("forward/V=%d/T=%v", vocab, temperature), func(b *testing.B) {
				b.SetBytes(int64(4 * rows * vocab))
				for b.Loop() {
					dev.LogProb(lp, stats, logits, ids, inv)
				}
			})
			b.Run(fmt.Sprintf("backward/V=%d/T=%v", vocab, temperature), func(b *testing.B) {
				b.SetBytes(int64(8 * rows * vocab))
				for b.Loop() {
					dev.LogProbBackward(dlogits, lp, stats, logits, ids, inv)
				}
			})
		}
		settings := make([]kernels.Sampling, rows)
		for _, s := range []kernels.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.95,
			TopK: 20}} {
			for i := range settings {
				settings[i] = s
				settings[i].Request = uint64(i)
			}
			b.Run(fmt.Sprintf("sample/V=%d/T=%v/k=%d", vocab, s.Temperature, s.TopK), func(b *testing.B) {
				b.SetBytes(int64(4 * rows * vocab))
				for b.Loop() {
					dev.Sample(ids, logits, settings)
				}
			})
		}
	}
}
