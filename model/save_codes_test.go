package model_test

import (
	"bytes"
	"fmt"
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
							return err
						}
						if !slices.ContainsFunc(m.Params, func(p *model.Param) bool { return p.Q != nil }) {
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
