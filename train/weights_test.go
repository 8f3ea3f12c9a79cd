package train

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/train/trainer"
)

// A step's loss is the sum of weight * loss over the sum of weights, of the whole step.
func TestSampleWeights(t *testing.T) {
	plain := data.Sample{IDs: []int32{1, 2, 3}, Targets: []int32{-1, 3, 4}}
	weighed := data.Sample{IDs: []int32{5, 6}, Targets: []int32{6, 7}, Weights: []float32{0.5, 4}}
	batch := trainer.Supervised([][]data.Sample{{plain}, {weighed, plain}})
	if want := 1 / 8.5; batch.Scale != want {
		t.Errorf("scale %g, want %g", batch.Scale, want)
	}
	want := [][]float32{{1, 1, 1}, {0.5, 4}, {1, 1, 1}}
	for i, le := range []trainer.Sample{batch.Packs[0][0], batch.Packs[1][0], batch.Packs[1][1]} {
		for row, w := range le.Weight {
			if w != want[i][row] {
				t.Errorf("sample %d, row %d weighs %g, want %g", i, row, w, want[i][row])
			}
		}
	}
}

// Weights of tokens count: a run with them goes elsewhere, by the same bits however it is cut; weights that are all
// alike are none, and 0 and 1 are a mask.
func TestTokenWeights(t *testing.T) {
	dir := t.TempDir()
	run := func(weights string, set ...string) string {
		var b strings.Builder
		for i := range 24 {
			fmt.Fprintf(&b, `{"ids": [%d, %d, %d, %d, %d]%s}`+"\n", 7+i, 3*i+1, 5*i+2, 100+i, 300-i, weights)
		}
		path := filepath.Join(dir, "ids.jsonl")
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		base := []string{"data.task=", "data.path=" + path, "data.eval_samples=0", "run.eval_every=0",
			"data.pack_rows=16", "run.steps=3", "optim.warmup_steps=1", "run.save_every=3"}
		digest, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, set...)...)
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	same := func(what, a, b string, want bool) {
		if (a == b) != want {
			t.Errorf("%s: same bits %t, want %t", what, a == b, want)
		}
	}
	none := run("")
	same("all 1", run(`, "weights": [1, 1, 1, 1, 1]`), none, true)
	same("all 4", run(`, "weights": [4, 4, 4, 4, 4]`), none, true)
	same("0 and 1", run(`, "weights": [0, 1, 0, 1, 0]`), run(`, "loss_mask": [0, 1, 0, 1, 0]`), true)
	weighed := run(`, "weights": [0, 0.5, 1, 3, 0]`)
	same("weights and none", weighed, none, false)
	same("weights and a mask", weighed, run(`, "loss_mask": [0, 1, 1, 1, 0]`), false)
	for _, set := range [][]string{{"run.micro_batch=2"}, {"run.micro_batch=4"}, {"device.threads=2"}} {
		same(fmt.Sprint(set), run(`, "weights": [0, 0.5, 1, 3, 0]`, set...), weighed, true)
	}
}
