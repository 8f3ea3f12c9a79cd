package model_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// passed is the output of the blocks and every gradient of one micro-batch, for a drawn gradient of that output. run
// takes a batch forward, and then the gradient backward.
func passed(r *parallel.Rank, m *model.Model, ids []int32, run func(b *model.Batch, d kernels.Tensor) []float32,
) map[string][]float32 {
	defer r.Stack.Release(r.Stack.Mark())
	rows := len(ids)
	b := model.NewBatch(r, ids, &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, int32(rows)}},
		nil)
	rng := rand.New(rand.NewPCG(1, 2))
	values := make([]float32, rows*m.Hidden)
	for i := range values {
		values[i] = float32(rng.NormFloat64())
	}
	d := parallel.Upload(r, values).Reshape(rows, m.Hidden)
	out := map[string][]float32{"output": run(b, d)}
	out["input"] = model.ReadValues(r.Dev, d)
	for _, p := range m.Trained() {
		out[p.Name] = model.ReadValues(r.Dev, p.Grad)
		r.Dev.Zero(p.Grad)
	}
	return out
}

// Stages one after the other give the bits of the model that they are cut from, wherever it is cut.
func TestStages(t *testing.T) {
	for _, family := range []string{"qwen3_moe", "glm5", "nemotron_h"} {
		onRank(t, func(r *parallel.Rank) error {
			dir := filepath.Join("testdata", family)
			m, err := learner(r, dir, kernels.F32, false)
			if err != nil {
				return err
			}
			ids := openGolden(t, dir).ids("ids.0")
			want := passed(r, m, ids, func(b *model.Batch, d kernels.Tensor) []float32 {
				p := &model.Pass{Batch: b, D: d, Saved: new(model.Saved)}
				p.X = m.Forward(r, b, p.Saved)
				x := model.ReadValues(r.Dev, p.X)
				m.Backward(r, &model.Share{Passes: []*model.Pass{p}})
				return x
			})
			for cut := range len(m.Blocks) + 1 {
				got := passed(r, m, ids, func(b *model.Batch, d kernels.Tensor) []float32 {
					first, second := m.Stage(0, cut), m.Stage(cut, len(m.Blocks))
					b.Prepare(r, m)
					p := &model.Pass{Batch: b, D: d, X: m.Embed.Forward(r, b)}
					one := &model.Share{Passes: []*model.Pass{p}}
					kept := &model.Saved{Policy: m.Everywhere(0)}
					p.Saved = kept
					first.Forward(r, p)
					p.Saved = &model.Saved{Policy: m.Everywhere(model.SaveAttention)}
					second.Forward(r, p)
					y := model.ReadValues(r.Dev, p.X)
					second.Backward(r, one)
					p.Saved = kept
					first.Backward(r, one)
					m.Embed.Backward(r, d, b)
					return y
				})
				if name := differs(got, want); name != "" {
					t.Errorf("%s, cut before block %d: %s differs", family, cut, name)
				}
			}
			return nil
		})
	}
}
