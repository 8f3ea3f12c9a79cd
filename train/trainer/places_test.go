package trainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// Micro-batches are dealt in order: each to as many ranks of a context as have a segment each, the others wait until
// the next context begins. A part has whole segments, the positions of its sequences go on, and their keys are
// where those of all parts lie.
func TestPlaces(t *testing.T) {
	pack := func(lengths ...int) (list []Sample) {
		for _, n := range lengths {
			list = append(list, Sample{Sample: data.Sample{IDs: make([]int32, n), Targets: make([]int32, n)}})
		}
		return list
	}
	micros := [][][]Sample{{pack(300)}, {pack(64)}, {pack(64, 1)}, {pack(20), pack(100, 100)}, {pack(9)}}
	for context, want := range map[int]string{
		0: "0 1 2 3 4", 2: "0:0/2 0:1/2 1 - 2:0/2 2:1/2 3:0/2 3:1/2 4",
		4: "0:0/4 0:1/4 0:2/4 0:3/4 1 - 2:0/2 2:1/2 3:0/4 3:1/4 3:2/4 3:3/4 4",
		3: "0:0/3 0:1/3 0:2/3 1 2 - 3:0/3 3:1/3 3:2/3 4",
	} {
		var got []string
		for _, p := range dealt(micros, context, 64) {
			switch {
			case p == hole:
				got = append(got, "-")
			case p.parts == 1:
				got = append(got, fmt.Sprint(p.micro))
			default:
				got = append(got, fmt.Sprintf("%d:%d/%d", p.micro, p.part, p.parts))
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("context of %d:\n%s\nwant\n%s", context, text, want)
		}
	}
	b := NewBatch([][]Sample{pack(20), pack(100, 100)}, 64) // segments at 0, 20, 84, 148, 212, 220
	at := 0
	for part, want := range []string{"[0 20 84] [{0 20 0 [] 0 0} {20 64 0 [] 0 0}]",
		"[0 64 128 136] [{0 36 64 [] 20 0} {36 100 0 [] 84 0}]"} {
		p := b.part(place{part: part, parts: 2})
		if got := fmt.Sprint(p.layout.Segments, " ", p.layout.Spans); got != want || p.from != at {
			t.Errorf("part %d from %d: %s, want %s", part, p.from, got, want)
		}
		at = p.to
	}
	if at != 220 || !slices.Equal(b.part(alone).layout.Segments, b.Layout.Segments) {
		t.Errorf("parts of %d rows", at)
	}
}

// Packs are dealt in order, in each round as many to one rank as to another that computes its own, and no micro-batch
// has more than it may.
func TestMicroBatches(t *testing.T) {
	for _, c := range []struct {
		packs, ranks, micro, lanes, context int
		want                                string
	}{
		{9, 1, 4, 1, 1, "4 4 1"}, {9, 2, 4, 1, 1, "2 2 2 3"}, {8, 2, 4, 1, 1, "4 4"}, {5, 2, 4, 1, 1, "2 3"},
		{1, 2, 4, 1, 1, "1"}, {20, 2, 4, 1, 1, "4 4 3 3 3 3"}, {9, 2, 4, 2, 1, "2 2 1 1 1 2"}, {9, 2, 4, 1, 2, "4 4 1"},
		{7, 3, 8, 1, 1, "2 2 3"}, {0, 2, 4, 1, 1, ""}, {34, 2, 4, 1, 1, "4 4 4 4 3 3 3 3 3 3"},
		{57, 2, 4, 1, 1, "4 4 4 4 4 4 4 4 3 3 3 3 3 3 3 4"}, {14, 4, 2, 1, 1, "2 2 2 2 1 1 2 2"},
		{5, 3, 1, 1, 1, "1 1 1 1 1"},
	} {
		tr := &Trainer{Rank: &parallel.Rank{Size: c.ranks}, Model: &model.Model{},
			Options: Options{MicroBatch: c.micro, Interleave: c.lanes, Context: c.context}}
		var sizes []string
		next := 0
		for _, micro := range tr.microBatches(make([][]Sample, c.packs)) {
			sizes, next = append(sizes, fmt.Sprint(len(micro))), next+len(micro)
		}
		if got := strings.Join(sizes, " "); got != c.want || next != c.packs {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// Shares of a round follow one another, or are dealt where ranks are together at a block; rounds follow one another.
func TestBreadth(t *testing.T) {
	for _, c := range []struct {
		places, ranks, lanes, breadth, context int
		want                                   string
	}{
		{5, 2, 1, 1, 1, "[[0] [1] [2] [3] [4]]"},
		{5, 2, 1, 2, 1, "[[0 1] [2 3] [4]]"},
		{7, 2, 1, 3, 1, "[[0 1 2] [3 4 5] [6]]"},
		{10, 2, 1, 3, 2, "[[0 2 4] [1 3 5] [6 8] [7 9]]"},
		{11, 2, 2, 2, 1, "[[0 1] [2 3] [4 5] [6 7] [8] [9] [10]]"},
		{3, 2, 1, 9, 1, "[[0 1] [2]]"}, {0, 2, 1, 3, 1, "[]"},
	} {
		tr := &Trainer{Model: &model.Model{},
			Options: Options{Interleave: c.lanes, Breadth: c.breadth, Context: c.context}}
		if got := fmt.Sprint(tr.shares(c.places, c.ranks)); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// Derivatives of rows that many cores compute are those of one.
func TestDerivatives(t *testing.T) {
	s, err := optim.Resolve("grpo", optim.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := optim.New("grpo", s)
	if err != nil {
		t.Fatal(err)
	}
	var rows optim.Rows
	for i := range 5*leastRows + 7 {
		v := float32(i)
		rows.Targets, rows.LogProb = append(rows.Targets, int32(i%3-1)), append(rows.LogProb, -v/700)
		rows.Rollout, rows.Weight = append(rows.Rollout, -v/690), append(rows.Weight, 1+v)
		rows.Advantage = append(rows.Advantage, v-300)
	}
	want := make([]float32, len(rows.Targets))
	o.Derivative(want, rows)
	if got := derivatives(o, rows); !slices.Equal(got, want) || slices.Max(want) <= 0 {
		t.Errorf("%v, want %v", got, want)
	}
}
