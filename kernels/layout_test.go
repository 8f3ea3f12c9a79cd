package kernels

import (
	"slices"
	"testing"
)

// A pack is cut into segments from its first row; the last one is shorter, and so may a pack be.
func TestCutSegments(t *testing.T) {
	for _, c := range []struct{ packs, want []int32 }{
		{[]int32{0, 128}, []int32{0, 64, 128}},
		{[]int32{0, 129}, []int32{0, 64, 128, 129}},
		{[]int32{0, 10, 10, 80, 208}, []int32{0, 10, 10, 74, 80, 144, 208}},
	} {
		if got := CutSegments(c.packs, 64); !slices.Equal(got, c.want) {
			t.Errorf("packs %v: segments %v, want %v", c.packs, got, c.want)
		}
	}
}

// Blocks of 64 rows and runs of 8 restart at each segment, an empty one too; the last ones are shorter.
func TestRowRuns(t *testing.T) {
	segments := []int32{0, 70, 70, 83, 211}
	blocks := []int32{0, 64, 70, 83, 147, 211}
	got, first := RowBlocks(segments)
	if !slices.Equal(got, blocks) || !slices.Equal(first, []int32{0, 2, 2, 3, 5}) {
		t.Errorf("blocks %v, want %v; first blocks of segments %v", got, blocks, first)
	}
	runs, starts := RowRuns(blocks)
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
