package model_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/parallel"
)

// With the floor of the reference a config.json with any time_step_limit computes what one with that floor in its
// time_step_limit does, which is what the golden has; the folder that is saved says so.
func TestStepFloor(t *testing.T) {
	golden := filepath.Join("testdata", "nemotron_h")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(golden)); err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &config) != nil {
		t.Fatal(err)
	}
	config["time_step_limit"], config["time_step_min"] = []any{0, 1000}, 0.001
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	onRank(t, func(r *parallel.Rank) error {
		g := openGolden(t, golden)
		logits := func(dir string, floor bool) []float32 {
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{StepFloor: floor})
			if err != nil {
				t.Fatal(err)
			}
			if floor {
				dir = t.TempDir()
				if err := m.SaveFolder(dir, ""); err != nil {
					t.Fatal(err)
				}
				if m, err = model.LoadFolder(r.Dev, dir, "", model.Options{}); err != nil {
					t.Fatal(err)
				}
			}
			b, _ := packed(r, g.ids("ids.0"))
			return model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
		}
		near(t, "logits with the floor", logits(dir, true), g.f32("logits.0"), 2e-4)
		if off, _ := largestApart(logits(dir, false), g.f32("logits.0")); off < 1e-3 {
			t.Errorf("without the floor logits are off by %g: the test cannot fail", off)
		}
		return nil
	})
	dev := meta.New(kernels.Default(), 0)
	_, err = model.LoadFolder(dev, filepath.Join("testdata", "qwen3"), "", model.Options{StepFloor: true})
	if err == nil || !strings.Contains(err.Error(), "qwen3") {
		t.Errorf("a floor of qwen3: error %v", err)
	}
}
