package model_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/model"
	"lockstep/parallel"
)

// A model ends at the ids of config.json and of generation_config.json, and a folder that is saved has them all again.
func TestEndsOfFolder(t *testing.T) {
	dir, saved := t.TempDir(), t.TempDir()
	generation := filepath.Join(dir, "generation_config.json")
	err := errors.Join(os.CopyFS(dir, os.DirFS("testdata/glm4_moe")), os.Remove(generation),
		os.WriteFile(generation, []byte(`{"eos_token_id": [5, 2, 9], "temperature": 0.7}`), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	onRank(t, func(r *parallel.Rank) error {
		m, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
		if err == nil {
			err = m.SaveFolder(saved, dir)
		}
		if err != nil {
			return err
		}
		again, err := model.LoadFolder(r.Dev, saved, "", model.Options{})
		if err != nil {
			return err
		}
		for _, m := range []*model.Model{m, again} {
			if !slices.Equal(m.EOS, []int32{2, 5, 9}) || m.Sampling.Temperature == nil || *m.Sampling.Temperature !=
				0.7 {
				t.Errorf("ends %v, sampling %q", m.EOS, m.Sampling.Sampling())
			}
		}
		if err := os.WriteFile(generation, []byte(`{"eos_token_id": "x"}`), 0o600); err != nil {
			return err
		}
		_, err = model.LoadFolder(r.Dev, dir, "", model.Options{})
		if err == nil || !strings.Contains(err.Error(), "generation_config.json: eos_token_id: want") {
			t.Errorf("a broken generation_config.json: %v", err)
		}
		return nil
	})
}
