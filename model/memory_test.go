package model_test

import (
	"path/filepath"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
	"lockstep/quant"
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
	eachCache(t, func(t *testing.T, family string, def kernels.Definition) {
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

// eachCache is [eachForm] with pages of numbers, and in codes where the form has such pages.
func eachCache(t *testing.T, body func(t *testing.T, family string, def kernels.Definition)) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		body(t, family, def)
		if def.Cache = quant.MXFP8; def.Latent != kernels.LatentExpanded {
			body(t, family, def)
		}
	})
}

// A number in codes takes 8.25 bits of a page: the same bytes hold 1.94 times the tokens in bf16.
func TestCacheInCodes(t *testing.T) {
	config := []byte(`{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
		"num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 32, "vocab_size": 16,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu"}`)
	token := func(def kernels.Definition) (bytes int) {
		onRankBy(t, def, func(r *parallel.Rank) error {
			m, err := model.Build(r.Dev, config, model.Options{DType: kernels.BF16})
			if err == nil {
				bytes = m.Memory().Token
			}
			return err
		})
		return bytes
	}
	def := kernels.Default()
	numbers := token(def)
	def.Cache = quant.MXFP8
	if codes, each := token(def), 2*2*4*128; numbers != 2*each || codes != each+each/32 {
		t.Errorf("a token takes %d bytes as numbers and %d in codes, of %d numbers", numbers, codes, each)
	}
}
