package model_test

import (
	"path/filepath"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// Memory is what a built model really holds, counted tensor by tensor, and a described one has the same.
func TestMemory(t *testing.T) {
	for _, family := range goldens {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			for _, adapters := range []bool{false, true} {
				onRank(t, func(r *parallel.Rank) error {
					m, err := model.LoadFolder(r.Dev, filepath.Join("testdata", family), "",
						model.Options{DType: dtype})
					if err != nil {
						return err
					}
					plan, err := model.Describe(m.Config, dtype)
					if err != nil {
						return err
					}
					if adapters {
						for _, m := range []*model.Model{m, plan} {
							if err := m.AddLoRA(peft.Config{Rank: 2, Alpha: 1, Pattern: ".*"}); err != nil {
								return err
							}
						}
					}
					m.TrainAll()
					if got, want := m.Memory(), held(m); got.Weights != want.Weights || got.Training != want.Training ||
						got != plan.Memory() {
						t.Errorf("%s in %s, adapters %t: %+v, described %+v, held %+v", family, dtype, adapters, got,
							plan.Memory(), want)
					}
					return nil
				})
			}
		}
	}
}

// held adds up the tensors of a model that is ready for training.
func held(m *model.Model) (n model.Memory) {
	for _, p := range m.Params {
		n.Weights += p.W.Bytes()
		n.Training += p.Grad.Bytes() + p.HeadGrad.Bytes()
	}
	for _, s := range m.Shards {
		for _, st := range s.States {
			for _, state := range []kernels.Tensor{st.Moved.M, st.Moved.V, st.Moved.Master} {
				if state.Data != st.W.Data {
					n.Training += state.Bytes()
				}
			}
		}
	}
	return n
}

// Of a cache, Memory is what a token and a sequence add.
func TestMemoryOfCache(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		onRankBy(t, def, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, filepath.Join("testdata", family), "", model.Options{DType: kernels.BF16})
			if err != nil {
				return err
			}
			mem := kernels.NewArena(r.Dev)
			m.NewCache(mem, model.CacheSize{Pages: 64, PageRows: 64, Slots: 32})
			n := m.Memory()
			want := 64*64*n.Token + 32*n.Sequence
			if got := mem.Peak(); got < want || got > want+8*256*len(m.Blocks) {
				t.Errorf("a cache of 4096 tokens and 32 sequences takes %d bytes, want %d and what aligning adds", got,
					want)
			}
			return nil
		})
	})
}
