package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

// A model in codes that is saved in codes opens with the same codes, and as the same numbers, on every bit. What a
// format of releases cannot hold is refused in a line with the tensor.
func TestSaveInCodes(t *testing.T) {
	saved := map[quant.Encoding]int{}
	for _, family := range []string{"qwen3", "qwen3_moe", "gpt_oss", "kimi_k2", "glm5", "qwen3_5_moe", "qwen3_next",
		"nemotron_h", "llama3"} {
		for _, e := range quant.Encodings {
			for d, def := range keptDefinitions() {
				for _, all := range []bool{false, true} {
					name := fmt.Sprintf("%s %s %s %t", family, e, d, all)
					onRankBy(t, def, func(r *parallel.Rank) error {
						dir, out := "testdata/"+family, t.TempDir()
						m, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: d,
							Encode: model.Encode{As: e, Projections: all}})
						if err != nil {
							if !strings.Contains(err.Error(), "none to put into it") {
								return err
							}
							return nil
						}
						if err := m.SaveInCodes(out, dir); err != nil {
							if !strings.Contains(err.Error(), "choose another format") {
								t.Errorf("%s: %v", name, err)
							}
							return nil
						}
						saved[e]++
						sameOpened(t, r, m, out, d, name)
						return nil
					})
				}
			}
		}
	}
	for _, e := range quant.Encodings {
		if saved[e] < 12 {
			t.Errorf("%s: only %d folders were saved", e, saved[e])
		}
	}
}

// What other tools would refuse to read, or holds no codes at all, is refused before anything is written.
func TestSaveInCodesRefuses(t *testing.T) {
	for _, c := range []struct {
		family string
		encode model.Encode
		want   string
	}{
		{"kimi_k2", model.Encode{As: quant.INT4, Projections: true},
			"q_b_proj.weight in int4: 48 columns are no multiple of 32: choose another format, or experts alone"},
		{"kimi_k2", model.Encode{As: quant.MXFP8, Projections: true},
			"q_b_proj.weight in mxfp8: 48 columns are no multiple of 32: choose another format, or experts alone"},
		{"kimi_k2", model.Encode{As: quant.MXFP4, Projections: true},
			"q_b_proj.weight in mxfp4: 48 columns are no multiple of 32: choose another format, or experts alone"},
		{"gpt_oss", model.Encode{As: quant.FP8},
			"weights in fp8: there is none to put into it: model.layers.0.mlp.experts.gate_up_proj: its blocks would " +
				"have rows of several blocks on disk: choose another format, or all projections"},
	} {
		onRank(t, func(r *parallel.Rank) error {
			dir, out := "testdata/"+c.family, filepath.Join(t.TempDir(), "out")
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{Encode: c.encode})
			if err == nil {
				err = m.SaveInCodes(out, dir)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %v: %v, want %q", c.family, c.encode, err, c.want)
			}
			if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %v: the folder is there (%v)", c.family, c.encode, err)
			}
			return nil
		})
	}
}

// sameOpened opens a folder in codes and as numbers, and wants the model.
func sameOpened(t *testing.T, r *parallel.Rank, m *model.Model, dir string, d kernels.DType, name string) {
	t.Helper()
	want := firstLogits(r, m)
	for _, mode := range []model.WeightsMode{model.KeepWeights, model.OpenWeights} {
		again, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: d, Weights: mode})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if !slices.Equal(firstLogits(r, again), want) {
			t.Errorf("%s: opened by mode %d it has other logits", name, mode)
		}
		for i, p := range again.Params {
			q := m.Params[i].Q
			switch {
			case mode == model.OpenWeights || q == nil:
			case p.Q == nil:
				t.Errorf("%s: %s is not kept in codes", name, p.Name)
			case !bytes.Equal(p.Q.Codes.Raw(), q.Codes.Raw()):
				t.Errorf("%s: %s has other codes", name, p.Name)
			}
		}
	}
}

func firstLogits(r *parallel.Rank, m *model.Model) []float32 {
	defer r.Stack.Release(r.Stack.Mark())
	b, _ := packed(r, []int32{3, 9, 4, 17, 5, 20, 6})
	return model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
}
