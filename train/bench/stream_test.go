package bench

import (
	"context"
	"strings"
	"testing"

	"lockstep/train/testshape"
)

// Packs that come slowly have first results sooner where they are computed as they come, to the same bits.
func TestStream(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=2", "parallel.stages=2", "pipeline.schedule=stream"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Stream(context.Background(), s, StreamOptions{Items: 6, Rate: 0.3, Out: &out}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{": 6 packs of ", "2 stages, \"stream\"", "first results", "same on every bit: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := Stream(context.Background(), s, StreamOptions{Items: 0, Rate: 1, Out: &out}); err == nil ||
		!strings.Contains(err.Error(), "--items 0") {
		t.Errorf("error %v", err)
	}
}
