package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// Groups are learned early in the order of their prompts, up to the first that has an answer to come.
func TestHandEarly(t *testing.T) {
	var got []string
	var c collector
	c.early = func(g *group, least int) error {
		got = append(got, fmt.Sprintf("%d, then %d rows", g.Asked, least))
		return nil
	}
	of := func(asked, missing, prompt int, answers ...int) *group {
		g := &group{Asked: asked, Missing: missing, Judged: missing == 0}
		for _, n := range answers {
			g.Episodes = append(g.Episodes, runlog.Episode{Prompt: make([]int32, prompt), IDs: make([]int32, n)})
		}
		return g
	}
	c.Groups = []*group{of(0, 0, 5, 1), of(1, 1, 20, 9, 0), of(2, 0, 30, 3), of(3, 2, 24, 0, 0)}
	for range 2 {
		if err := c.handEarly(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"0, then 20 rows"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c.Groups[1].Missing, c.Groups[1].Judged = 0, true
	if err := c.handEarly(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0, then 20 rows", "1, then 24 rows", "2, then 24 rows"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Packs that are computed while other answers are sampled give the files and answers of a step that begins when it has
// all, on any ranks: replicated, sharded, of a pipeline, with all that a step compares with. Each run computes some.
func TestStreamedRL(t *testing.T) {
	base := append(testshape.RL(), "warm_start.steps=2", "run.steps=2", "rl.prompts=8", "data.pack_rows=64",
		"rollout.slots=7")
	run := func(ranks int, set ...string) (digest string, early int) {
		s, err := testshape.Parse(append(append([]string{fmt.Sprintf("parallel.ranks=%d", ranks)}, base...), set...))
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "run")
		if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, uint64(ranks))); err != nil {
			t.Fatal(err)
		}
		records, err := runlog.ReadMetrics(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range records {
			early += rec.EarlyPacks
		}
		return wholeDigest(t, out), early
	}
	t.Setenv(rewardProgram, "1")
	dynamic := []string{"rl.objective=dapo", "rl.kl_coef=0.1", "rl.proximal=true", "rl.dynamic=true",
		"rl.reward=command", "rl.command=['" + os.Args[0] + "', '-test.run=^$']"}
	for _, c := range []struct{ mode, meshes []string }{
		{nil, []string{"1", "2 parallel.weights=sharded", "2 parallel.stages=2 pipeline.schedule=stream"}},
		{dynamic, []string{"2 parallel.experts=2"}},
	} {
		want, none := run(1, c.mode...)
		for _, mesh := range c.meshes {
			var ranks int
			set := strings.Fields(mesh)
			fmt.Sscan(set[0], &ranks)
			got, early := run(ranks, slices.Concat(c.mode, set[1:], []string{"rl.stream=true"})...)
			if got != want {
				t.Errorf("%s, %s:\n%s\nwant\n%s", c.mode, mesh, got, want)
			}
			if early == 0 || none != 0 {
				t.Errorf("%s, %s: %d packs were computed early, %d without rl.stream", c.mode, mesh, early, none)
			}
		}
	}
}
