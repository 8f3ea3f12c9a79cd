package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/train/runlog"
)

// theirs is what .ci/transformers/preferences.py writes.
type theirs struct {
	LR    float64
	Pairs []json.RawMessage
	Runs  []struct {
		Kind           string
		Beta           float64
		LabelSmoothing float64 `json:"label_smoothing"`
		Steps          []map[string]float64
	}
}

// Transformers with a second model for the reference, torch's autograd and its AdamW come to the same losses, rewards
// and gradients, step by step, up to fp32.
func TestPreferenceAgainstTransformers(t *testing.T) {
	var want theirs
	if err := json.Unmarshal([]byte(readBytes(t, "testdata/preferences.json")), &want); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, p := range want.Pairs {
		lines.Write(append(p, '\n'))
	}
	path := writeText(t, filepath.Join(t.TempDir(), "pairs.jsonl"), lines.String())
	for _, run := range want.Runs {
		shape := fmt.Sprintf("[model]\npath = '../model/testdata/qwen3_moe'\n[data]\npreferences = '%s'\npack_rows = "+
			"256\n[dpo]\nkind = '%s'\nbeta = %v\nlabel_smoothing = %.1f\n"+
			"[optim]\nlr = %v\nschedule = 'constant'\nclip = 0.0\n[run]\npacks = 1\nsteps = %d\nverify_tokens = 0\n",
			path, run.Kind, run.Beta, run.LabelSmoothing, want.LR, len(run.Steps))
		s, err := configs.Parse("torch.toml", []byte(shape), nil)
		if err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		out := filepath.Join(t.TempDir(), "run")
		if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for i, r := range readRecords(t, out) {
			for key, got := range map[string]*runlog.Number{
				"loss": r.Loss, "grad_norm": r.GradNorm, "margin": r.Margin, "preferred": r.Preferred,
				"chosen_reward": r.ChosenReward, "rejected_reward": r.RejectedReward,
				"chosen_logprob": r.ChosenLogProb, "rejected_logprob": r.RejectedLogProb,
			} {
				x := run.Steps[i][key]
				off := math.Abs(float64(*got)-x) / math.Max(1, math.Abs(x))
				if worst = math.Max(worst, off); !(off < 5e-5) {
					t.Errorf("%s: %s of step %d is %g, transformers has %g", run.Kind, key, i+1, float64(*got), x)
				}
			}
		}
		t.Logf("%s, beta %g: within %.2g", run.Kind, run.Beta, worst)
	}
}
