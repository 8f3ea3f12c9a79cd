//go:build cuda

package bench

import "testing"

// configs/peers/cuda_codes.py draws the same numbers: its digests are of the same operands.
func TestHashed(t *testing.T) {
	for _, c := range [][3]uint32{{0, 1, 0x85efe529}, {12345, 2, 0x2d9c88b4}, {67108863, 3, 0x33b51e01}} {
		if got := hashed(c[0], c[1]); got != c[2] {
			t.Errorf("hashed(%d, %d) is %#x, want %#x", c[0], c[1], got, c[2])
		}
	}
}
