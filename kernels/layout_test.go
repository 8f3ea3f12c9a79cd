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

// Devices take every key once, no tile of two sequences, and as many pairs with the rows that follow a key. In one
// order they would differ by half a tile of each.
func TestDealKeys(t *testing.T) {
	for _, rows := range [][]int{{262144}, {40}, {8192, 3, 5000}, {1}} {
		l, end := &Layout{}, map[int]int{} // of the sequence of a first row
		for _, n := range rows {
			at := 0
			if i := len(l.Spans) - 1; i >= 0 {
				at = l.Spans[i].Row + l.Spans[i].Rows
			}
			l.Spans = append(l.Spans, Span{Row: at, Rows: n})
			for i := range n {
				end[at+i] = at + n
			}
		}
		l.Segments = []int32{0, int32(len(end))}
		for devices := 1; devices < 5; devices++ {
			var taken []int
			pairs, all := make([]int, devices), 0
			for i, ranges := range l.DealKeys(devices) {
				for _, keys := range ranges {
					if end[keys[0]] != end[keys[1]-1] {
						t.Errorf("%v: keys %v of two sequences", rows, keys)
					}
					for at := keys[0]; at < keys[1]; at++ {
						taken, pairs[i], all = append(taken, at), pairs[i]+end[at]-at, all+end[at]-at
					}
				}
			}
			slices.Sort(taken)
			if len(taken) != len(end) || len(slices.Compact(taken)) != len(end) {
				t.Errorf("%v: %d devices take %d keys", rows, devices, len(taken))
			}
			bound := map[int]float64{262144: 1.003, 8192: 1.12}[rows[0]]
			if most := slices.Max(pairs); bound > 0 && float64(most*devices) > bound*float64(all) {
				t.Errorf("%v: one of %d devices has %d of %d pairs", rows, devices, most, all)
			}
		}
	}
}

// A part of a layout has the rows of its ranges, each at its position and before the keys of its sequence.
func TestPart(t *testing.T) {
	l := &Layout{Spans: []Span{{Rows: 5}, {Row: 5, Rows: 4}, {Row: 9, Rows: 3}}, Segments: []int32{0, 12}}
	part := l.Part([2]int{3, 7}, [2]int{8, 9}, [2]int{10, 10}, [2]int{10, 12})
	want := []Span{{Row: 0, Rows: 2, Pos: 3, Shift: 0}, {Row: 2, Rows: 2, Pos: 0, Shift: 3},
		{Row: 4, Rows: 1, Pos: 3, Shift: 1}, {Row: 5, Rows: 2, Pos: 1, Shift: 4}}
	if !slices.EqualFunc(part.Spans, want, func(a, b Span) bool {
		return a.Row == b.Row && a.Rows == b.Rows && a.Pos == b.Pos && a.Shift == b.Shift
	}) || part.Rows() != 7 {
		t.Errorf("%+v of %d rows, want %+v", part.Spans, part.Rows(), want)
	}
	if none := l.Part(); none.Rows() != 0 || none.Spans != nil {
		t.Errorf("no ranges: %+v", none)
	}
}

// Each device is dealt much the same number of pairs of a row and a key before it of a long sequence.
func TestDealRows(t *testing.T) {
	l := &Layout{Spans: []Span{{Rows: 262144}}, Segments: []int32{0, 262144}}
	for devices := 2; devices < 9; devices++ {
		for i, ranges := range l.DealRows(devices) {
			pairs := 0.0
			for _, s := range l.Part(ranges...).Spans {
				pairs += float64(s.Rows) * float64(s.Pos+s.Pos+s.Rows+1) / 2
			}
			if share := pairs * float64(devices) / (262144 * 262145 / 2); share > 1.065 {
				t.Errorf("device %d of %d has %.3f of its share", i, devices, share)
			}
		}
	}
	// as many rows of many sequences as of one
	for _, lengths := range [][]int{{7, 1, 130, 62}, {16, 16, 16, 152}, {200}} {
		many, row := &Layout{Segments: []int32{0, 200}}, 0
		for _, n := range lengths {
			many.Spans = append(many.Spans, Span{Row: row, Rows: n})
			row += n
		}
		for i, want := range []int{104, 96} { // tiles of 16, 8 of the last one
			if got := many.Part(many.DealRows(2)[i]...).Rows(); got != want {
				t.Errorf("%v: %d rows of device %d, want %d", lengths, got, i, want)
			}
		}
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
