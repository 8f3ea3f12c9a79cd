package parallel

import (
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// Pieces of host memory are changed once for each round in which they are used, through rings of one slot and more,
// whenever copies are carried out: some rounds fetch ahead, some leave pieces out, and the host changes them.
func TestHostRing(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1, DelayCopies: seed})
		if err != nil {
			t.Fatal(err)
		}
		columns := make([]int, 1+rng.IntN(9))
		for i := range columns {
			columns[i] = 1 + rng.IntN(100)
		}
		mem := kernels.NewArena(dev)
		g := NewHostRing(dev, mem, kernels.NewHostArena(dev), columns, rng.IntN(4)*512)
		one := mem.Zeros(kernels.F32, 1, 100)
		for i := range one.F32s() {
			one.F32s()[i] = 1
		}
		want := make([]float32, len(columns))
		for round := range 6 {
			if round%2 == 0 {
				g.Fetch()
			}
			for i, n := range columns {
				if round%3 == 2 && rng.IntN(2) == 0 {
					continue
				}
				g.Use(i)
				g.Use(i)
				dev.Add(g.OnDevice(i), g.OnDevice(i), one.ColRange(0, n))
				want[i]++
				if rng.IntN(2) == 0 {
					g.GiveBack()
				}
			}
			g.Finish()
			if round%3 != 2 {
				continue
			}
			if err := g.Flush(); err != nil {
				t.Fatal(err)
			}
			for i := range columns { // as by a checkpoint that is loaded
				for k := range g.Host(i).F32s() {
					g.Host(i).F32s()[k]++
				}
				want[i]++
			}
		}
		if err := g.Flush(); err != nil {
			t.Fatal(err)
		}
		for i, n := range columns {
			if got := g.Host(i).F32s(); !slices.Equal(got, slices.Repeat(want[i:i+1], n)) {
				t.Fatalf("seed %d, %d slots: piece %d of %d has %v, want %v", seed, len(g.slots), i, len(columns), got,
					want[i])
			}
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A piece is used in order alone, and once.
func TestHostRingOrder(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	g := NewHostRing(dev, kernels.NewArena(dev), kernels.NewHostArena(dev), []int{3, 4}, 0)
	g.Use(1)
	for _, piece := range []int{0, 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("piece %d is used behind a later one, or again", piece)
				}
			}()
			g.Use(piece)
		}()
		g.GiveBack()
	}
}
