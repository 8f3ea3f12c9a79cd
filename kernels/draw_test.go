package kernels

import (
	"math"
	"testing"
)

// A normal variate is the sum of twelve uniforms of 16 bits, about 0 and of variance 1.
func TestDrawnNormal(t *testing.T) {
	const n = 1 << 16
	mean, square := 0.0, 0.0
	for i := range uint64(n) {
		sum := -6.0 * 0xffff
		for j := range uint64(3) {
			for w, k := mix(7+(3*i+j+1)*golden), 0; k < 4; k++ {
				sum += float64(w & 0xffff)
				w >>= 16
			}
		}
		x := DrawnNormal(7, i)
		if x != sum/(1<<16) {
			t.Fatalf("element %d: %v, want %v", i, x, sum/(1<<16))
		}
		mean, square = mean+x/n, square+x*x/n
	}
	if math.Abs(mean) > 0.02 || math.Abs(square-1) > 0.02 {
		t.Errorf("mean %v, mean square %v", mean, square)
	}
}
