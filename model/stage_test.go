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
				s := new(model.Saved)
				x := model.ReadValues(r.Dev, m.Forward(r, b, s))
				m.Backward(r, d, b, s)
				return x
			})
			for cut := range len(m.Blocks) + 1 {
				got := passed(r, m, ids, func(b *model.Batch, d kernels.Tensor) []float32 {
					first, second := m.Stage(0, cut), m.Stage(cut, len(m.Blocks))
					kept := [2]model.Saved{{Policy: m.Everywhere(0)}, {Policy: m.Everywhere(model.SaveAttention)}}
					b.Prepare(r, m)
					x := first.Forward(r, m.Embed.Forward(r, b), b, &kept[0])
					y := model.ReadValues(r.Dev, second.Forward(r, x, b, &kept[1]))
					second.Backward(r, d, b, &kept[1])
					first.Backward(r, d, b, &kept[0])
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
