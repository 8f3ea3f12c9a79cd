package parallel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// Tensors come back as they were pushed, whenever copies are carried out and however many there are, also where the
// next pass overwrites the host's memory. The last ones never leave.
func TestOffloadStack(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 3))
		dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1, DelayCopies: seed})
		if err != nil {
			t.Fatal(err)
		}
		r := newRank(dev, 0, 1)
		n := 1 + rng.IntN(40)
		fill := func(to kernels.Tensor, values []float32) { dev.Copy(to, Upload(r, values)) }
		for range 3 {
			mark, host := r.Stack.Mark(), r.Pinned().Mark()
			depth := 1 + rng.IntN(9)
			want := make([][]float32, depth)
			for i := range want {
				for range n {
					want[i] = append(want[i], rng.Float32())
				}
			}
			first := r.Stack.New(kernels.F32, 1, n)
			fill(first, want[0])
			o := NewOffloadStack(r, first, depth)
			for i := 1; i < depth; i++ {
				fill(o.Next(), want[i])
				o.Push()
			}
			if got, most := len(o.host), max(depth-offloadSlots, 0); got != most || len(o.slots) > offloadSlots {
				t.Fatalf("%d of %d tensors have memory of the host, %d slots", got, depth, len(o.slots))
			}
			for i := depth - 1; i >= 0; i-- {
				if got := Download[float32](r, o.Top()); !slices.Equal(got, want[i]) {
					t.Fatalf("seed %d: tensor %d of %d is %v, want %v", seed, i, depth, got, want[i])
				}
				o.Pop()
			}
			r.Stack.Release(mark)
			r.Pinned().Release(host)
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
