package kernels

import (
	"slices"
	"testing"
)

// Blocks of 64 rows and runs of 8 restart at each pack, an empty one too; the last ones are shorter.
func TestRowRuns(t *testing.T) {
	packs := []int32{0, 70, 70, 83, 211}
	blocks := []int32{0, 64, 70, 83, 147, 211}
	if got := RowBlocks(packs); !slices.Equal(got, blocks) {
		t.Errorf("blocks %v, want %v", got, blocks)
	}
	runs, starts := RowRuns(packs)
	want := []int32{0, 8, 16, 24, 32, 40, 48, 56, 64, 70, 78, 83, 91, 99, 107, 115, 123, 131, 139, 147, 155, 163, 171,
		179, 187, 195, 203, 211}
	if !slices.Equal(runs, want) {
		t.Errorf("runs %v, want %v", runs, want)
	}
	if want := []int32{0, 8, 9, 11, 19, 27}; !slices.Equal(starts, want) {
		t.Errorf("first runs of blocks %v, want %v", starts, want)
	}
}

// Log-probabilities of greedy answers are of temperature 1.
func TestInverse(t *testing.T) {
	for temperature, want := range map[float32]float32{0: 1, 1: 1, 0.5: 2, 4: 0.25} {
		if got := Inverse(temperature); got != want {
			t.Errorf("temperature %v: %v, want %v", temperature, got, want)
		}
	}
}
