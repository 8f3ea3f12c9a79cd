package model_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/parallel"
	"lockstep/quant"
)

const roundingBase = "testdata/qwen3_moe"

// roundedBy saves a model, or an adapter on it, that was made by a definition, and returns the folder.
func roundedBy(t *testing.T, from string, rounds checkpoint.Rounding, adapter bool) string {
	t.Helper()
	dir, def := t.TempDir(), kernels.Default()
	def.Acts, def.Cache = rounds.Acts, rounds.Cache
	onRankBy(t, def, func(r *parallel.Rank) error {
		m, err := model.LoadFolder(r.Dev, from, "", model.Options{Encode: model.DefaultEncode(quant.MXFP8)})
		if err != nil {
			return err
		}
		if !adapter {
			return m.SaveInCodes(dir, from)
		}
		if err := m.AddLoRA(peft.Config{Rank: 2, Alpha: 2, Pattern: ".*"}); err != nil {
			return err
		}
		return m.SaveAdapter(dir, from)
	})
	return dir
}

// Folders of models and adapters name what they were trained with, and that is the default of whoever opens them; an
// adapter also says that it was trained without what the folder below it says.
func TestRoundingOfFolders(t *testing.T) {
	none, both := checkpoint.Rounding{}, checkpoint.Rounding{Acts: quant.MXFP8, Cache: quant.MXFP8}
	acts, cache := checkpoint.Rounding{Acts: quant.MXFP8}, checkpoint.Rounding{Cache: quant.MXFP8}
	for _, below := range []checkpoint.Rounding{none, cache, both} {
		base := roundedBy(t, roundingBase, below, false)
		if got, err := model.RoundingOf(base, ""); err != nil || got != below {
			t.Errorf("a model by %+v: %+v, %v", below, got, err)
		}
		for _, own := range []checkpoint.Rounding{none, acts, cache, both} {
			adapter := roundedBy(t, base, own, true)
			if got, err := model.RoundingOf(base, adapter); err != nil || got != own {
				t.Errorf("an adapter by %+v on a model by %+v: %+v, %v", own, below, got, err)
			}
			merged := t.TempDir()
			if _, err := model.MergeFolder(t.Context(), base, adapter, merged, kernels.F32); err != nil {
				t.Fatal(err)
			}
			if got, err := model.RoundingOf(merged, ""); err != nil || got.Cache != own.Cache {
				t.Errorf("%+v merged into %+v: %+v, %v", own, below, got, err)
			}
			text, err := os.ReadFile(filepath.Join(adapter, peft.File))
			if err != nil {
				t.Fatal(err)
			}
			if named := strings.Contains(string(text), checkpoint.OwnKey); named != (own != none || below != none) {
				t.Errorf("an adapter by %+v on a model by %+v names it: %t", own, below, named)
			}
		}
	}
}

// A name that no definition has ends in a line that says what it may be.
func TestRoundingRefused(t *testing.T) {
	for field, want := range map[string]string{
		`{"cache": "fp8"}`:  `cache is "fp8"`,
		`{"cache": 8}`:      "cache is 8",
		`{"caches": "fp8"}`: `"caches" is not known`,
		`"mxfp8"`:           "cannot unmarshal",
	} {
		dir := roundedBy(t, roundingBase, checkpoint.Rounding{Cache: quant.MXFP8}, true)
		replaceIn(t, filepath.Join(dir, peft.File), `{
    "cache": "mxfp8"
  }`, field)
		onRank(t, func(r *parallel.Rank) error {
			_, err := model.LoadFolder(r.Dev, roundingBase, dir, model.Options{})
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %s", field, err, want)
			}
			return nil
		})
	}
}

// replaceIn changes a file.
func replaceIn(t *testing.T, path, old, text string) {
	t.Helper()
	was, err := os.ReadFile(path)
	if err == nil && !strings.Contains(string(was), old) {
		t.Fatalf("%s has no %s", path, old)
	}
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(was), old, text, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
