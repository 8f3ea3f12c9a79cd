package train

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// Every family learns by reinforcement with rollouts that agree with the trainer on every bit, stale answers included,
// and a replay comes to the same checkpoints.
func TestLearnFamilies(t *testing.T) { eachFamily(t, learnExactly) }

func learnExactly(t *testing.T, dir string, _ int) {
	s, err := testshape.Parse(append(testshape.RL(), "warm_start.steps=2", "run.steps=3", "rl.prompts=3",
		"rl.staleness=1",
		"rollout.slots=5", "run.verify_tokens=200", oneThread,
		// untrained networks differ in what they babble
		"rl.overlong_rows=0", "rl.reward=command",
		`rl.command=["awk", "{print \"{\\\"reward\\\": \" length($0) % 7 \"}\"}"]`))
	if err != nil {
		t.Fatal(err)
	}
	s.Model.Config = widened(t, filepath.Join(dir, "config.json"))
	s.Model.Family = s.Model.Config["model_type"].(string)
	delete(s.Model.Config, "model_type")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	out := filepath.Join(t.TempDir(), "run")
	if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
		t.Fatal(err)
	}
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	compared, moved := 0, false
	for _, r := range records {
		if r.Reward == nil {
			continue
		}
		compared += r.Compared
		moved = moved || float64(*r.GradNorm) > 0
		if r.Differ != 0 || *r.KLExact != 0 || math.IsNaN(float64(*r.Loss)) {
			t.Errorf("step %d: %d of %d tokens differ, KL over the vocabulary %g, loss %g", r.Step, r.Differ,
				r.Compared, float64(*r.KLExact), float64(*r.Loss))
		}
	}
	if compared < 50 || !moved {
		t.Errorf("%d tokens compared, weights moved %t", compared, moved)
	}
	res, err := Replay(context.Background(), out, []string{"device.threads=2"}, log)
	if err != nil || res.Err() != nil || res.Checkpoints == 0 {
		t.Errorf("%v (%v)", res, err)
	}
}

// widened is a config.json with a vocabulary for the tokenizer of the tiny shape, and without the ids of another.
func widened(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	inner, ok := config["text_config"].(map[string]any)
	if !ok {
		inner = config
	}
	inner["vocab_size"] = 480
	for _, key := range []string{"eos_token_id", "bos_token_id", "pad_token_id"} {
		delete(inner, key)
		delete(config, key)
	}
	for key, value := range inner {
		if value == nil { // which TOML has not
			delete(inner, key)
		}
	}
	return config
}
