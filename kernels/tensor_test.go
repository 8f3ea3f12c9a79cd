package kernels

import (
	"slices"
	"testing"
)

// matrix is [6, 4] of the numbers 0 ... 23.
func matrix() Tensor {
	x := make([]float32, 24)
	for i := range x {
		x[i] = float32(i)
	}
	return Wrap(x, 6, 4)
}

func TestViews(t *testing.T) {
	x := matrix()
	for _, c := range []struct {
		name       string
		view       Tensor
		first      float32
		rows, cols int
		span       int // elements from the first to the last
		contiguous bool
	}{
		{"all", x, 0, 6, 4, 24, true},
		{"rows", x.RowRange(1, 4), 4, 3, 4, 12, true},
		{"columns", x.ColRange(1, 3), 1, 6, 2, 22, false},
		{"columns of a row", x.RowRange(2, 3).ColRange(1, 3), 9, 1, 2, 2, true},
		{"every third row", x.InterleavedGroup(1, 3), 4, 2, 4, 16, false},
		{"columns of every second row", x.InterleavedGroup(1, 2).ColRange(2, 4), 6, 3, 2, 18, false},
		{"stacked", x.Stacked(2, 2, 2).Group(1), 16, 2, 4, 8, true},
		{"no rows", x.RowRange(2, 2), 8, 0, 4, 0, true},
	} {
		v := c.view.F32s()
		if c.view.Rows != c.rows || c.view.Cols != c.cols || len(v) != c.span || c.view.Contiguous() != c.contiguous ||
			len(v) > 0 && v[0] != c.first {
			t.Errorf("%s: %s of %v, contiguous %v", c.name, c.view, v, c.view.Contiguous())
		}
	}
	every := x.InterleavedGroup(1, 3)
	if v := every.F32s(); v[every.Stride] != 16 {
		t.Errorf("the second of every third row begins with %v, want 16", v[every.Stride])
	}
}

// Terms for ranges of columns split the columns into runs, each listed once.
func TestRuns(t *testing.T) {
	terms := []Term{{}, {From: 2, To: 4}, {From: 4, To: 7}, {From: 2, To: 4}}
	if got, want := Runs(9, terms), []int{0, 2, 4, 7, 9}; !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
	for col, want := range []string{0: "0", 1: "0", 2: "013", 3: "013", 4: "02", 6: "02", 7: "0", 8: "0"} {
		got := ""
		for i, term := range terms {
			if term.Covers(col) {
				got += string(rune('0' + i))
			}
		}
		if want != "" && got != want {
			t.Errorf("column %d has terms %s, want %s", col, got, want)
		}
	}
}
