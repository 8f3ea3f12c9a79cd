package model_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// taken is what a device and a rank's stack hold after each stage of a model's life.
type taken struct {
	stages []string
	bytes  [][3]int // of the device, of the stack, the stack's peak

	workspace int // of a device that has one
}

func (n *taken) note(r *parallel.Rank, stage string) {
	n.stages = append(n.stages, stage)
	n.bytes = append(n.bytes, [3]int{kernels.Allocated(r.Dev), r.Stack.Held(), r.Stack.Peak()})
}

// live builds, adapts, trains and serves a golden model, which is filled by load.
func live(r *parallel.Rank, adapters bool, load func() (*model.Model, error)) (n taken, err error) {
	m, err := load()
	if err != nil {
		return n, err
	}
	n.note(r, "weights")
	if adapters {
		err = m.AddLoRA(peft.Config{Rank: 3, Alpha: 1, Pattern: ".*"})
		n.note(r, "adapters")
	}
	m.TrainAll()
	n.note(r, "training")
	ids := make([]int32, 60)
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: 60}}, Segments: []int32{0, 60}}
	for i, policy := range []model.Policy{m.Everywhere(0), m.Everywhere(model.SaveAttention | model.SaveGateUp), nil} {
		mark := r.Stack.Mark()
		logprob := r.Stack.New(kernels.F32, 1, len(ids))
		b := model.NewBatch(r, ids, l, nil)
		targets := model.Targets{IDs: parallel.Upload(r, ids)}
		loss := model.Loss{Derivative: parallel.Upload(r, make([]float32, len(ids))).ColRange}
		m.Step(r, &model.Share{Passes: []*model.Pass{{Batch: b, LogProb: logprob, Targets: targets, Loss: loss}}},
			policy)
		r.Stack.Release(mark)
		n.note(r, fmt.Sprintf("a step of policy %d", i))
	}
	mem := kernels.NewArena(r.Dev)
	cache := m.NewCache(mem, model.CacheSize{Pages: 3, PageRows: 32, Slots: 2})
	n.note(r, "a cache")
	served := &kernels.Layout{Spans: []kernels.Span{{Rows: 60, Pages: []int32{2, 0}}}, Segments: []int32{0, 60}}
	m.Head.Logits(r, m.Forward(r, model.NewBatch(r, ids, served, cache), nil))
	n.note(r, "serving")
	n.workspace = kernels.Workspace(r.Dev)
	return n, err
}

// planned is what a model of a folder takes on a meta device that stands for the rank's.
func planned(r *parallel.Rank, dir string, o model.Options, adapters bool) (taken, error) {
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return taken{}, err
	}
	r = r.WithDevice(r.Dev.(kernels.Planner).Meta())
	return live(r, adapters, func() (*model.Model, error) { return model.Build(r.Dev, config, o) })
}

// A meta device counts what the real one takes, to the byte: every golden in full and with adapters, trained and
// served.
func TestMetaDevice(t *testing.T) {
	eachCache(t, func(t *testing.T, family string, def kernels.Definition) {
		dir := filepath.Join("testdata", family)
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			for _, adapters := range []bool{false, true} {
				onRankBy(t, def, func(r *parallel.Rank) error {
					o := model.Options{DType: dtype}
					real, err := live(r, adapters, func() (*model.Model, error) {
						return model.LoadFolder(r.Dev, dir, "", o)
					})
					plan, metaErr := planned(r, dir, o, adapters)
					if !slices.Equal(real.bytes, plan.bytes) {
						t.Errorf("%s, adapters %t: %v\n took %v\nby plan %v", dtype, adapters, real.stages, real.bytes,
							plan.bytes)
					}
					return errors.Join(err, metaErr)
				})
			}
		}
	})
}

// Adapters and training state take one piece of memory each, without a byte to spare.
func TestArenasAreExact(t *testing.T) {
	for _, family := range goldens {
		for _, rank := range []int{0, 64} {
			onRank(t, func(r *parallel.Rank) error {
				bytes := func() int { return kernels.Allocated(r.Dev) }
				m, err := model.LoadFolder(r.Dev, filepath.Join("testdata", family), "",
					model.Options{DType: kernels.BF16})
				if err != nil {
					return err
				}
				weights, params := bytes(), len(m.Params)
				if rank > 0 {
					if err := m.AddLoRA(peft.Config{Rank: rank, Alpha: 1, Pattern: ".*"}); err != nil {
						return err
					}
				}
				adapters, least, most := bytes()-weights, 0, 0
				for _, p := range m.Params[params:] { // those of one A may lie together
					least, most = least+p.W.Bytes(), most+kernels.ArenaBytes(p.W.DType, 1, p.W.Len())
				}
				if adapters < least || adapters > most {
					t.Errorf("%s: adapters of %d bytes take %d", family, least, adapters)
				}
				m.TrainAll()
				if got, want := bytes()-weights-adapters, states(m); got != want {
					t.Errorf("%s, rank %d: training takes %d bytes, its tensors %d", family, rank, got, want)
				}
				return nil
			})
		}
	}
}

// states is what the tensors of training take of an arena.
func states(m *model.Model) (n int) {
	for _, s := range m.Shards {
		list := []kernels.Tensor{s.Grad, s.HeadGrad}
		for _, st := range s.States {
			list = append(list, st.Moved.M, st.Moved.V, st.Moved.Master)
		}
		for _, state := range list {
			if !state.IsNil() && state.Data != s.W.Data {
				n += kernels.ArenaBytes(state.DType, 1, state.Len())
			}
		}
	}
	return n
}
