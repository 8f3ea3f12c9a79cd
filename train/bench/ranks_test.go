package bench

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"lockstep/train/testshape"
)

// A benchmark of a shape with several ranks is refused: it times one.
func TestOneRank(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=2"})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Steps: 1, Each: time.Millisecond, Out: io.Discard}
	for name, err := range map[string]error{
		"cpu": CPU(context.Background(), s, o), "cuda": CUDA(context.Background(), s, o),
		"recompute": Recompute(context.Background(), s, o),
		"rl":        RL(context.Background(), s, RLOptions{Objectives: []string{"sft"}, Out: io.Discard}),
		"rollout":   Rollout(context.Background(), s, RolloutOptions{Out: io.Discard}),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "parallel.ranks: is 2") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
