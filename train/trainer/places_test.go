package trainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/data"
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
