package kernels

import (
	"math"
	"testing"
)

// The known answers of Random123's kat_vectors for philox4x32 with 10 rounds.
func TestPhiloxKnownAnswers(t *testing.T) {
	const all = 0xffffffff
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{all, all, all, all}, [2]uint32{all, all}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := Philox(c.counter, c.key); got != c.want {
			t.Errorf("Philox(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestUniformRangeAndKeys(t *testing.T) {
	seen := map[float32]int{}
	for seed := range uint64(8) {
		for request := range uint64(8) {
			for index := range uint64(8) {
				u := Uniform(seed<<33, request<<33, index<<33)
				if grid := u * (1 << 24); u < 0 || u >= 1 || grid != float32(int(grid)) { // finer numbers round up to 1
					t.Fatalf("Uniform(%d, %d, %d) = %v", seed, request, index, u)
				}
				seen[u]++
			}
		}
	}
	// 512 draws of 2^24 values: 3 or more coincidences have probability below 1e-6.
	if len(seen) < 510 {
		t.Errorf("512 keys give only %d numbers: some bits of a key are not used", len(seen))
	}
}

// 64 equal bins of 64k draws: chi-square with 63 degrees of freedom is below 120 but for 2 in 100,000 seeds.
func TestUniformChiSquare(t *testing.T) {
	const bins, n = 64, 1 << 16
	for _, draw := range []func(i uint64) float32{
		func(i uint64) float32 { return Uniform(7, 1, i) },
		func(i uint64) float32 { return Uniform(7, i, 1) },
		func(i uint64) float32 { return Uniform(i, 7, 1) },
	} {
		var count [bins]int
		for i := range uint64(n) {
			count[int(draw(i)*bins)]++
		}
		chi := 0.0
		for _, c := range count {
			chi += math.Pow(float64(c)-n/bins, 2) / (n / bins)
		}
		if chi > 120 {
			t.Errorf("chi-square %.1f over %d bins: counts %v", chi, bins, count)
		}
	}
}
