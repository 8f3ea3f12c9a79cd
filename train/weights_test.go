package train

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/train/trainer"
)

// A step's loss is the sum of weight * loss over the sum of weights, of the whole step; where all weights are 1 each
// target has 1/N on every bit.
func TestSampleWeights(t *testing.T) {
	plain := data.Sample{IDs: []int32{1, 2, 3}, Targets: []int32{-1, 3, 4}}
	weighed := data.Sample{IDs: []int32{5, 6}, Targets: []int32{6, 7}, Weights: []float32{0.5, 4}}
	list := trainer.Supervised([][]data.Sample{{plain}, {weighed, plain}})
	const sum = 2 + 4.5 + 2
	want := [][]float32{{1 / sum, 1 / sum, 1 / sum}, {0.5 / sum, 4 / sum}, {1 / sum, 1 / sum, 1 / sum}}
	for i, le := range []trainer.Sample{list[0][0], list[1][0], list[1][1]} {
		for row, w := range le.Weight {
			if w != want[i][row] {
				t.Errorf("sample %d, row %d weighs %g, want %g", i, row, w, want[i][row])
			}
		}
	}
	for n := 1; n < 40; n++ {
		pack := make([]data.Sample, n)
		for i := range pack {
			pack[i] = plain
		}
		got, want := trainer.Supervised([][]data.Sample{pack})[0][0].Weight[0], float32(1/float64(2*n))
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Errorf("%d targets: %g, want %g", 2*n, got, want)
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
	for _, set := range [][]string{{"run.micro_batch=2"}, {"run.micro_batch=4"}, {"device.threads=1"}} {
		same(fmt.Sprint(set), run(`, "weights": [0, 0.5, 1, 3, 0]`, set...), weighed, true)
	}
}
