package quant

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Every weight becomes the nearest of the 16 multiples of its group's scale, whatever its neighbours in other groups
// are.
func TestINT4(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, cols := range []int{1, 31, 32, 33, 100} {
		const rows = 5
		w := make([]float32, rows*cols)
		for i := range w {
			w[i] = float32(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(7)-3)))
		}
		got := append([]float32{}, w...)
		RoundINT4Groups(got, rows, cols)
		for i, x := range w {
			from := i/cols*cols + i%cols/INT4Group*INT4Group
			to := min(from+INT4Group, i/cols*cols+cols)
			largest := 0.0
			for _, y := range w[from:to] {
				largest = max(largest, math.Abs(float64(y)))
			}
			best := math.Inf(1)
			for q := -8.0; q <= 7; q++ {
				best = min(best, math.Abs(float64(x)-q*largest/7))
			}
			if off := math.Abs(float64(x) - float64(got[i])); off > best*(1+1e-5)+1e-6*largest {
				t.Fatalf("%d columns: weight %d, %g, became %g: %g away, the nearest is %g away", cols, i, x, got[i],
					off, best)
			}
		}
	}
	zero := []float32{0, float32(math.Copysign(0, -1)), 0}
	RoundINT4Groups(zero, 1, 3)
	for _, x := range zero {
		if math.Float32bits(x) != 0 {
			t.Errorf("zero became %g", x)
		}
	}
	bad := []float32{1, float32(math.Inf(-1)), 2}
	RoundINT4Groups(bad, 1, 3)
	for _, x := range bad {
		if math.Float32bits(x) != 0x7fc00000 {
			t.Errorf("next to an infinity: %#x", math.Float32bits(x))
		}
	}
}
