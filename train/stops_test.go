package train

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// Answers end at every id of eos_token_id, in reinforcement learning and in evaluation: none goes on behind one.
func TestEveryEndStops(t *testing.T) {
	texts := map[int32]string{458: " (", 459: " )", 460: " +", 461: " -", 462: " *", 463: " /"}
	ends := append(slices.Sorted(maps.Keys(texts)), 479)
	out := filepath.Join(t.TempDir(), "run")
	set := append(testshape.RL(), "model.config.eos_token_id=[479, 458, 459, 460, 461, 462, 463]", "run.steps=2",
		"data.eval_samples=8", "rollout.temperature=1")
	if _, err := runTiny(t, out, false, set...); err != nil {
		t.Fatal(err)
	}
	stopped := map[int32]int{}
	if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
		at := slices.IndexFunc(e.IDs, func(id int32) bool { return slices.Contains(ends, id) })
		if at >= 0 && at < len(e.IDs)-1 || (at >= 0) != (e.Finish == "stop") {
			t.Errorf("answer %v ends by %q, with an end at %d", e.IDs, e.Finish, at)
		}
		if at >= 0 {
			stopped[e.IDs[at]]++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if stopped[459] < 3 {
		t.Errorf("ends %v: the test shows nothing", stopped)
	}
	text, err := os.ReadFile(filepath.Join(out, runlog.ResultFile))
	if err != nil {
		t.Fatal(err)
	}
	var res runlog.Result
	if err := json.Unmarshal(text, &res); err != nil || len(res.Samples) != 8 {
		t.Fatalf("%d answers in the report (%v)", len(res.Samples), err)
	}
	for _, g := range res.Samples {
		for _, end := range texts {
			if strings.Contains(g.Answer, end) {
				t.Errorf("the evaluation's answer %q goes on behind %q", g.Answer, end)
			}
		}
	}
}
