package model_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
	"lockstep/quant"
)

// keptDefinitions are arithmetics, and the storage type of weights by each.
func keptDefinitions() map[kernels.DType]kernels.Definition {
	tc16 := kernels.Default()
	tc16.Dot = kernels.DotTC16
	return map[kernels.DType]kernels.Definition{kernels.F32: kernels.Default(), kernels.BF16: tc16}
}

// lora is what a model with adapters on every projection gives: logits, the losses of steps, and adapters after them.
type lora struct {
	logits, losses []float32
	adapters       []byte
	said           string
}

// trainAdapters opens a folder with weights in codes or as numbers, and trains adapters on it.
func trainAdapters(t *testing.T, dir string, def kernels.Definition, o model.Options, ids []int32) (out lora) {
	t.Helper()
	onRankBy(t, def, func(r *parallel.Rank) (err error) {
		out, err = trainAdaptersOn(r, dir, o, ids)
		return err
	})
	return out
}

// trainAdaptersOn is trainAdapters of a rank.
func trainAdaptersOn(r *parallel.Rank, dir string, o model.Options, ids []int32) (out lora, err error) {
	m, err := model.LoadFolder(r.Dev, dir, "", o)
	if err != nil {
		return out, err
	}
	out.said = m.Opened()
	c := peft.Config{Rank: 4, Alpha: 8, Targets: m.OutsideExperts(), TargetParameters: fusedExperts(m)}
	if err := m.AddLoRA(c); err != nil {
		return out, err
	}
	m.InitialiseAdapters(3)
	b, _ := packed(r, ids)
	out.logits = model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
	out.losses = adamW(r, m, 3, ids)
	var w bytes.Buffer
	for _, a := range m.AdapterTensors() {
		if err := a.Write(&w); err != nil {
			return out, err
		}
	}
	out.adapters = w.Bytes()
	return out, nil
}

// fusedExperts are the parameters of experts that may have an adapter.
func fusedExperts(m *model.Model) (names []string) {
	for _, b := range m.Blocks {
		for _, sub := range b {
			for _, l := range sub.Layer.Linears() {
				if l.Fused {
					names = append(names, l.W.Name)
				}
			}
		}
	}
	return names
}

// A release whose weights stay in codes is the model of the same release opened, on every bit: logits, losses, adapters
// on every projection after some steps. What it saves is the same too.
func TestKeptIsOpened(t *testing.T) {
	for name, r := range releases(t) {
		for d, def := range keptDefinitions() {
			t.Run(fmt.Sprintf("%s %s", name, d), func(t *testing.T) {
				dir, ids := r.write(t), openGolden(t, r.dir).ids("ids.0")
				want := trainAdapters(t, dir, def, model.Options{DType: d}, ids)
				got := trainAdapters(t, dir, def, model.Options{DType: d, Weights: model.KeepWeights}, ids)
				mustEqual(t, got, want)
				if !strings.Contains(got.said, "kept in codes") || strings.Contains(want.said, "kept in codes") {
					t.Errorf("says %q where weights are kept, %q where they are opened", got.said, want.said)
				}
				savedAlike(t, dir, def, d)
			})
		}
	}
}

func mustEqual(t *testing.T, got, want lora) {
	t.Helper()
	if !slices.Equal(got.logits, want.logits) || !slices.Equal(got.losses, want.losses) ||
		!bytes.Equal(got.adapters, want.adapters) {
		t.Error("logits, losses or adapters differ from those of opened weights")
	}
}

// savedAlike wants the same tensors saved of weights in codes as of opened ones, and the same codes in a copy.
func savedAlike(t *testing.T, dir string, def kernels.Definition, d kernels.DType) {
	t.Helper()
	kept, opened := t.TempDir(), t.TempDir()
	onRankBy(t, def, func(r *parallel.Rank) error {
		for to, mode := range map[string]model.WeightsMode{kept: model.KeepWeights, opened: model.OpenWeights} {
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: d, Weights: mode})
			if err == nil {
				err = m.SaveFolder(to, dir)
			}
			if err != nil {
				return err
			}
			if mode == model.OpenWeights {
				continue
			}
			other, err := cpu.New(def, cpu.Options{Threads: 1})
			if err != nil {
				return err
			}
			defer other.Close()
			dup, err := m.EmptyCopy(other, d, model.Encode{})
			if err == nil {
				err = dup.CopyWeights(m, model.Encode{})
			}
			if err != nil {
				return err
			}
			for i, p := range m.Params {
				if q := dup.Params[i].Q; p.Q != nil && (q == nil || !bytes.Equal(q.Codes.Raw(), p.Q.Codes.Raw()) ||
					!bytes.Equal(q.Scales.Raw(), p.Q.Scales.Raw())) {
					t.Errorf("%s has other codes in a copy", p.Name)
				}
			}
			if dup.Memory().Weights != m.Memory().Weights {
				t.Errorf("a copy takes %d bytes, want %d", dup.Memory().Weights, m.Memory().Weights)
			}
		}
		return nil
	})
	sameFolder(t, kept, opened)
}

// Codes take a part of the memory: INT4 with bf16 scales of 32 takes 4.5 bits for each of an expert's weights.
func TestKeptMemory(t *testing.T) {
	r := int4Release(t, "kimi_k2")
	onRank(t, func(rank *parallel.Rank) error {
		bytes, dir := map[model.WeightsMode]int{}, r.write(t)
		var experts int
		for _, mode := range []model.WeightsMode{model.OpenWeights, model.KeepWeights} {
			m, err := model.LoadFolder(rank.Dev, dir, "", model.Options{DType: kernels.BF16, Weights: mode})
			if err != nil {
				return err
			}
			bytes[mode], experts = m.Memory().Weights, 0
			if s, err := model.Inspect(dir); err != nil || mode == model.KeepWeights && s.InCodes != bytes[mode] {
				t.Errorf("inspect says %d bytes, the model takes %d (%v)", s.InCodes, bytes[mode], err)
			}
			for _, b := range m.Blocks {
				for _, sub := range b {
					for _, l := range sub.Layer.Linears() {
						if l.Fused {
							experts += l.W.Elements()
						}
					}
				}
			}
		}
		if saved, want := bytes[model.OpenWeights]-bytes[model.KeepWeights], experts*(32-9)/16; saved != want {
			t.Errorf("%d bytes less for %d weights of experts, want %d", saved, experts, want)
		}
		return nil
	})
}

// A copy on the same device has weights in codes in the same memory; one that rounds them has numbers of its own.
func TestCopiesShareCodes(t *testing.T) {
	r := int4Release(t, "kimi_k2")
	onRank(t, func(rank *parallel.Rank) error {
		m, err := model.LoadFolder(rank.Dev, r.write(t), "", model.Options{Weights: model.KeepWeights})
		if err != nil {
			return err
		}
		for rounding, shares := range map[quant.Encoding]bool{quant.AsTrained: true, quant.FP8: false} {
			dup, err := m.EmptyCopy(rank.Dev, m.DType, allIn(rounding))
			if err == nil {
				err = dup.CopyWeights(m, allIn(rounding))
			}
			if err != nil {
				return err
			}
			shared := 0
			for i, p := range m.Params {
				if p.Q != nil && p.Address() == dup.Params[i].Address() {
					shared++
				}
				if !shares && dup.Params[i].Q != nil {
					t.Errorf("%s stays in codes in a copy that is rounded to %s", p.Name, rounding)
				}
			}
			if shares != (shared > 0) {
				t.Errorf("rounded to %q: %d weights share memory", rounding, shared)
			}
		}
		return nil
	})
}

// What a checkpoint's projections become in a format: each of its tensors encoded by itself. Masters of training are
// the checkpoint's numbers.
func TestMastersStart(t *testing.T) {
	for _, family := range []string{"qwen3_moe", "qwen3_next", "glm5", "nemotron_h"} {
		for _, e := range quant.Encodings {
			dir := "testdata/" + family
			checkpoint := golden{t, openCheckpoint(t, dir)}
			onRank(t, func(r *parallel.Rank) error {
				in := model.Encode{As: e, Projections: true}
				m, err := model.LoadFolder(r.Dev, dir, "", model.Options{Encode: in})
				if err != nil {
					return err
				}
				coded := map[string]bool{}
				for _, p := range m.Params {
					for _, part := range p.Parts {
						coded[part.Name] = p.Q != nil
					}
				}
				encoded := 0
				for _, out := range m.Tensors() {
					want := slices.Clone(checkpoint.f32(out.Name))
					if coded[out.Name] {
						cols := out.Shape[len(out.Shape)-1]
						e.Round(want, len(want)/cols, cols)
						encoded++
					}
					if got := written(t, out); !slices.Equal(got, want) {
						t.Errorf("%s, %s: %s is not its own encoding", family, e, out.Name)
					}
				}
				if encoded < 4 {
					t.Errorf("%s: %d tensors in codes", family, encoded)
				}
				m.TrainAll()
				c := model.Replicas{m}
				if err := c.LoadMasters(dir); err != nil {
					return err
				}
				plain, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
				if err != nil {
					return err
				}
				for _, out := range c.OptimizerTensors() {
					for _, p := range plain.Params {
						if out.Name != p.Name+".master" {
							continue
						}
						if !slices.Equal(written(t, out), model.ReadValues(r.Dev, p.W)) {
							t.Errorf("%s, %s: the master of %s is not the checkpoint's", family, e, p.Name)
						}
					}
				}
				return nil
			})
		}
	}
}

// written is what a tensor of fp32 writes.
func written(t *testing.T, out safetensors.OutTensor) []float32 {
	t.Helper()
	var w bytes.Buffer
	if err := out.Write(&w); err != nil {
		t.Fatal(err)
	}
	values := make([]float32, w.Len()/4)
	if err := binary.Read(&w, binary.LittleEndian, values); err != nil {
		t.Fatal(err)
	}
	return values
}
