package train

import (
	"flag"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"lockstep/train/testshape"
)

var (
	manyKills = flag.Int("kills", 0, "kills of TestManyKills")
	manyFlips = flag.Int("flips", 8, "flipped bits of TestFlippedBits")
)

// A checkpoint with any bit flipped is not resumed from: the run goes on from the one before, to the same bits.
func TestFlippedBits(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := []string{"run.steps=3", "optim.warmup_steps=1", "data.eval_samples=0"}
	want, err := runTiny(t, out, false, set...)
	if err != nil {
		t.Fatal(err)
	}
	last := filepath.Join(out, checkpointsDir, checkpointName(3))
	rng := rand.New(rand.NewPCG(3, 5))
	for range *manyFlips {
		path := flipped(t, rng, last)
		if _, err := readState(last); err == nil {
			t.Errorf("%s: a flipped bit is not noticed", path)
		}
		if got, err := runTiny(t, out, true, set...); err != nil || got != want {
			t.Errorf("%s: resumed to %s, want %s (%v)", path, got, want, err)
		}
	}
	t.Logf("%d flipped bits", *manyFlips)
}

// flipped flips one bit of one file below a folder and returns its name.
func flipped(t *testing.T, rng *rand.Rand, dir string) (path string) {
	t.Helper()
	var files []string
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	path = files[rng.IntN(len(files))]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[rng.IntN(len(text))] ^= 1 << rng.IntN(8)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// As many kills as -kills asks for, in runs of all kinds: each comes to the bits of an undisturbed one.
func TestManyKills(t *testing.T) {
	total := 0
	for seed := uint64(2); total < *manyKills && !t.Failed(); seed++ {
		for _, set := range [][]string{
			{"run.steps=60"}, append(testshape.RL(), "run.steps=16", "rl.minibatches=2"),
			append(testshape.RL(), "run.steps=24", "rl.staleness=2", "rl.temperature=0.6"),
			append(tinyPairs(t), "run.steps=30", "lora.rank=4"),
		} {
			total += killed(t, set, nil, rand.New(rand.NewPCG(seed, 2)))
		}
	}
	t.Logf("%d kills", total)
}
