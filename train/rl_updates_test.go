package train

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/model"
	"lockstep/optim"
	"lockstep/train/report"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// A step of many updates at a high rate clips tokens and moves away from the rollout, and whoever looks at the run is
// told: in metrics.jsonl, TensorBoard's events, the progress line and the report.
func TestManyUpdates(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := append(testshape.RL(), "rl.minibatches=4", "rl.epochs=4", "optim.lr=5e-3", "run.steps=2",
		"warm_start.steps=2")
	log := logged(t, out, set...)
	lines := strings.Split(strings.TrimSpace(readBytes(t, filepath.Join(out, runlog.MetricsFile))), "\n")
	var last map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	number := func(key string) float64 {
		x, ok := last[key].(float64)
		if !ok {
			t.Fatalf("no %s in %s", key, lines[len(lines)-1])
		}
		return x
	}
	updates, _ := last["by_update"].([]any)
	if len(updates) != 16 {
		t.Fatalf("%d updates in %s, want 16", len(updates), lines[len(lines)-1])
	}
	for _, key := range []string{"clip_fraction", "approx_kl", "loss", "grad_norm", "ratio"} {
		sum, end, largest := 0.0, 0.0, math.Inf(-1)
		for _, u := range updates {
			end = u.(map[string]any)[key].(float64)
			sum, largest = sum+end, math.Max(largest, end)
		}
		if key == "ratio" {
			largest = number("ratio_max") // of a token
		}
		if number(key+"_max") != largest || number(key+"_last") != end || math.Abs(number(key)-sum/16) > 1e-12 {
			t.Errorf("%s: mean %g, last %g, max %v of %v", key, number(key), number(key+"_last"), last[key+"_max"],
				updates)
		}
	}
	first := updates[0].(map[string]any)
	if first["clip_fraction"] != 0.0 || first["approx_kl"] != 0.0 || first["ratio"] != 1.0 {
		t.Errorf("before the first update the policy is the rollout's: %v", first)
	}
	if number("clip_fraction_max") < 0.1 || number("approx_kl_max") < 0.01 ||
		number("ratio_max") < 1.2 || number("ratio_min") > 0.8 {
		t.Errorf("the run does not go far enough for this test: %s", lines[len(lines)-1])
	}
	for _, words := range []string{"clipped ", "approx KL ", "norm ", "(mean/last/max)"} {
		if !strings.Contains(log, words) {
			t.Errorf("no %q in the log:\n%s", words, log)
		}
	}
	page := readBytes(t, filepath.Join(out, report.ReportFile))
	for _, words := range []string{"Approximate KL", "over the updates of a step", ">Ratio<",
		"clipped tokens, worst update"} {
		if !strings.Contains(page, words) {
			t.Errorf("no %q in the report", words)
		}
	}
	events, err := filepath.Glob(filepath.Join(out, "events.*"))
	if err != nil || len(events) != 1 {
		t.Fatalf("%v (%v)", events, err)
	}
	for _, tag := range []string{"train/loss_max", "train/grad_norm_last", "rl/clip_fraction", "rl/clip_fraction_last",
		"rl/clip_fraction_max", "rl/approx_kl_max", "rl/ratio_min", "rl/ratio_max"} {
		if !bytes.Contains([]byte(readBytes(t, events[0])), []byte(tag)) {
			t.Errorf("TensorBoard gets no %s", tag)
		}
	}
}

// logged runs the tiny shape with settings on top and returns what it said.
func logged(t *testing.T, out string, set ...string) string {
	t.Helper()
	s, err := testshape.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := Run(t.Context(), s, Options{Out: out, Log: log}); err != nil {
		t.Fatal(err)
	}
	return readBytes(t, log.Name())
}

// Means over updates count each update once, however many tokens it has; of one update there is no last and no largest.
func TestRecordUpdates(t *testing.T) {
	made := func(loss, norm float64, clipped, targets int, lp float32) update {
		u := update{StepResult: trainer.StepResult{Norm: norm, LR: loss / 10, IndexerLoss: 2 * loss,
			IndexerNorm: norm / 4}}
		u.Loss, u.Clipped, u.Targets, u.Corrected, u.KL = loss, clipped, targets, 2*clipped, float64(targets)*norm
		u.drift.Add(optim.Rows{Targets: []int32{1, -1, 2}, LogProb: []float32{lp, 3, -1},
			Rollout: []float32{-1, 9, -1}})
		return u
	}
	updates := []update{made(1, 4, 0, 10, -1), made(5, 2, 4, 16, 0), made(3, 6, 1, 8, -2)}
	l := &learner{}
	var rec runlog.Record
	fields := l.recordUpdates(&rec, updates)
	said := []string{"clipped 12.50/12.50/25.00%", "approx KL 0.181/0.184/0.359", "norm 4/6/6 (mean/last/max)"}
	if !slices.Equal(fields, said) {
		t.Errorf("fields %q, want %q", fields, said)
	}
	k := []float64{0, (math.E - 2) / 2, (1/math.E + 0) / 2} // e^x - 1 - x of x = 0, 1, -1, with a token of ratio 1
	want := map[string]float64{
		"loss": 3, "loss_last": 3, "loss_max": 5, "grad_norm": 4, "grad_norm_last": 6, "grad_norm_max": 6, "lr": 0.1,
		"clip_fraction": 0.125, "clip_fraction_last": 0.125, "clip_fraction_max": 0.25,
		"approx_kl": (k[0] + k[1] + k[2]) / 3, "approx_kl_last": k[2], "approx_kl_max": k[1],
		"ratio": (1 + (math.E+1)/2 + (1/math.E+1)/2) / 3, "ratio_last": (1/math.E + 1) / 2,
		"ratio_min": 1 / math.E, "ratio_max": math.E,
	}
	compareNumbers(t, rec, want)
	if len(rec.ByUpdate) != 3 || rec.ByUpdate[1].ClipFraction != 0.25 || rec.ByUpdate[2].GradNorm != 6 {
		t.Errorf("by update %+v", rec.ByUpdate)
	}
	if res := meanIndexers(updates); res.IndexerLoss != 6 || res.IndexerNorm != 1 {
		t.Errorf("indexers %+v", res)
	}
	rec = runlog.Record{}
	if fields := l.recordUpdates(&rec, updates[1:2]); !slices.Equal(fields, []string{"clipped 25.00%"}) {
		t.Errorf("fields %q", fields)
	}
	compareNumbers(t, rec, map[string]float64{
		"loss": 5, "grad_norm": 2, "lr": 0.5, "clip_fraction": 0.25, "approx_kl": k[1],
		"ratio": (math.E + 1) / 2, "ratio_min": 1, "ratio_max": math.E,
	})

	l.reference, l.rl.Proximal = &model.Model{}, true
	rec = runlog.Record{}
	l.recordUpdates(&rec, updates)
	if rec.ReferenceKL == nil || *rec.ReferenceKL != 4 || rec.Corrected == nil || *rec.Corrected != 0.25 {
		t.Errorf("reference KL %v, corrected %v, want 4 and 0.25", rec.ReferenceKL, rec.Corrected)
	}
}

// compareNumbers wants these numbers of a record, to 1e-6, and no others.
func compareNumbers(t *testing.T, rec runlog.Record, want map[string]float64) {
	t.Helper()
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for key, value := range got {
		x, ok := value.(float64)
		if _, wanted := want[key]; ok && !wanted && key != "step" {
			t.Errorf("%s = %g, which was not asked for", key, x)
		}
	}
	for key, value := range want {
		if x, ok := got[key].(float64); !ok || math.Abs(x-value) > 1e-6 {
			t.Errorf("%s = %v, want %g", key, got[key], value)
		}
	}
}
