package bench

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/kernels/devices"
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

// The benchmark of ranks times training and answers on one rank and on several, and compares the bits of both.
func TestRanks(t *testing.T) {
	for _, set := range [][]string{{"parallel.ranks=2"}, {"parallel.ranks=2", "parallel.experts=2", "lora.rank=4",
		"lora.targets=q_proj,o_proj"}, {"parallel.ranks=2", "parallel.experts=2"}} {
		s, err := testshape.Parse(append(set, "run.packs=2"))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		o := RanksOptions{Steps: 1, Requests: 3, Prompt: Span{4, 9}, New: Span{2, 7}, Out: &out}
		if err := Ranks(context.Background(), s, o); err != nil {
			t.Errorf("%v: %v\n%s", set, err, out.String())
		}
		for _, want := range []string{": 4 packs of ", " 6 requests", "one rank  2 ranks", "of training steps",
			"of answers", "fullest device", "same on every bit: SHA-256 "} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, out.String())
			}
		}
		share, even := "0.50  largest share", "even shares of rows"
		if cut := s.Parallel.Experts > 1; strings.Contains(out.String(), share) != cut ||
			strings.Contains(out.String(), even) != cut {
			t.Errorf("%v: %q and %q are to be there: %v\n%s", set, share, even, cut, out.String())
		}
	}
	s, err := testshape.Parse([]string{"run.packs=2"})
	if err != nil {
		t.Fatal(err)
	}
	alone := func(ranks, packs, requests int) string {
		var out strings.Builder
		s.Parallel.Ranks, s.Run.Packs = ranks, packs
		if err := Ranks(context.Background(), s, RanksOptions{Steps: 1, Requests: requests, Prompt: Span{4, 9},
			New: Span{2, 7}, Alone: true, Out: &out}); err != nil {
			t.Errorf("%d ranks alone: %v", ranks, err)
		}
		_, digest, _ := strings.Cut(out.String(), "trained weights and answers: SHA-256 ")
		return digest
	}
	if one, two := alone(1, 4, 6), alone(2, 2, 3); one == "" || one != two {
		t.Errorf("the same step and requests on one rank and on two: SHA-256 %q and %q", one, two)
	}
	host, err := testshape.Parse([]string{"parallel.ranks=2", "run.packs=2", "lora.rank=4", "offload.weights=0"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Ranks(context.Background(), host, RanksOptions{Steps: 1, Out: &out}); err != nil ||
		!strings.Contains(out.String(), "MiB of pinned memory") || strings.Contains(out.String(), "of answers") {
		t.Errorf("weights on the host: %v\n%s", err, out.String())
	}
	if err := Ranks(context.Background(), host, RanksOptions{Steps: 1, Requests: 1, Out: &out}); err == nil ||
		!strings.Contains(err.Error(), "set --requests 0") {
		t.Errorf("answers with weights on the host: %v", err)
	}
	s.Parallel.Ranks = 1
	if err := Ranks(context.Background(), s, RanksOptions{Steps: 1, Requests: 1}); err == nil ||
		!strings.Contains(err.Error(), "--ranks 2") {
		t.Errorf("one rank: %v", err)
	}
}

// Next to what ranks do is the plan of their machine.
func TestPrintAlone(t *testing.T) {
	for _, stages := range []int{1, 2} {
		s, err := testshape.Parse([]string{"parallel.ranks=2"})
		if err != nil {
			t.Fatal(err)
		}
		s.Device.Kind, s.Parallel.Stages = devices.CUDA, stages
		var out strings.Builder
		err = printAlone(&out, s, onMesh{ranks: s.Parallel, device: "NVIDIA H200", train: 1234})
		if want := regexp.MustCompile(`(?m)^ *1234 +[1-9]\d+ +tokens/s of training steps$`); err != nil ||
			!want.MatchString(out.String()) {
			t.Errorf("%d stages: %v\n%swant %s", stages, err, out.String(), want)
		}
	}
}
