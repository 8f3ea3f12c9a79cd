package model_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

// onTwo runs body with a golden model and a device for its dup.
func onTwo(t *testing.T, family, adapter string, body func(r *parallel.Rank, m *model.Model,
	other kernels.Device) error) {
	t.Helper()
	onRank(t, func(r *parallel.Rank) error {
		other, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
		if err != nil {
			return err
		}
		defer other.Close()
		if adapter != "" {
			adapter = filepath.Join("testdata", "adapters", adapter)
		}
		m, err := model.LoadFolder(r.Dev, filepath.Join("testdata", family), adapter, model.Options{})
		if err != nil {
			return err
		}
		return body(r, m, other)
	})
}

// copied are goldens with every kind of parameter: adapters of experts, gates of one output, recurrences, indexers,
// biases.
var copied = [][2]string{{"qwen3_moe", "qwen3_moe_experts"}, {"qwen3_moe", "qwen3_moe"}, {"qwen3_5_moe", ""},
	{"glm5", "glm5"}, {"gpt_oss", ""}, {"nemotron_h", ""}}

func TestEmptyCopy(t *testing.T) {
	for _, c := range copied {
		onTwo(t, c[0], c[1], func(r *parallel.Rank, m *model.Model, other kernels.Device) error {
			for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
				dup, err := m.EmptyCopy(other, dtype, model.Encode{})
				if err != nil {
					return err
				}
				if err := dup.CopyWeights(m, model.Encode{}); err != nil {
					return err
				}
				for i, p := range m.Params {
					want, got := model.ReadValues(r.Dev, p.W), model.ReadValues(other, dup.Params[i].W)
					if dup.Params[i].W.DType == kernels.BF16 {
						for j, v := range want {
							want[j] = kernels.NearestBF16(v)
						}
					}
					if !slices.Equal(got, want) {
						t.Errorf("%s in %s: %s differs", c, dtype, p)
					}
				}
				if dtype == kernels.F32 && !slices.Equal(logitsOf(r.Dev, m), logitsOf(other, dup)) {
					t.Errorf("%s: a dup's logits differ", c)
				}
			}
			return nil
		})
	}
}

func logitsOf(dev kernels.Device, m *model.Model) []float32 {
	r := &parallel.Rank{Dev: dev, Stack: kernels.NewArena(dev)}
	b, _ := packed(r, []int32{1, 2, 3, 5, 8, 13}, []int32{21, 34})
	return model.ReadValues(dev, m.Head.Logits(r, m.Forward(r, b, nil)))
}

// What a format changes, by names of checkpoints: matrices of projections, and nothing of what is next to them.
func projected(name string) bool {
	if strings.Contains(name, "lora_") || strings.HasSuffix(name, "bias") || strings.Contains(name, "indexer") ||
		strings.Contains(name, "shared_expert_gate") {
		return false
	}
	return strings.Contains(name, "_proj") || strings.Contains(name, "experts.")
}

func TestCopyWeightsInFP8(t *testing.T) {
	for _, c := range copied {
		onTwo(t, c[0], c[1], func(r *parallel.Rank, m *model.Model, other kernels.Device) error {
			return copiesInFP8(t, r.Dev, m, other)
		})
	}
	onTwo(t, "qwen3", "", func(r *parallel.Rank, m *model.Model, other kernels.Device) error {
		config := strings.NewReplacer(`"hidden_size": 64`, `"hidden_size": 144`, `"intermediate_size": 96`,
			`"intermediate_size": 200`).Replace(string(m.Config))
		wide, err := model.Build(r.Dev, []byte(config), model.Options{}) // of projections that are no whole squares
		if err != nil {
			return err
		}
		if wide.Hidden != 144 {
			t.Fatalf("hidden size %d", wide.Hidden)
		}
		wide.Initialise(1)
		return copiesInFP8(t, r.Dev, wide, other)
	})
}

// copiesInFP8 copies a model to another device in block FP8 and holds every parameter against a plain rounding.
func copiesInFP8(t *testing.T, dev kernels.Device, m *model.Model, other kernels.Device) error {
	t.Helper()
	dup, err := m.EmptyCopy(other, kernels.F32, model.Encode{})
	if err != nil {
		return err
	}
	if err := dup.CopyWeights(m, allIn(quant.FP8)); err != nil {
		return err
	}
	changed := 0
	for i, p := range m.Params {
		want, got := model.ReadValues(dev, p.W), model.ReadValues(other, dup.Params[i].W)
		if projected(p.Name) {
			roundParts(want, p)
			changed++
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s differs", m.Family, p)
		}
	}
	if changed < 2*len(m.Blocks) {
		t.Errorf("%s: only %d parameters are projections", m.Family, changed)
	}
	if slices.Equal(logitsOf(dev, m), logitsOf(other, dup)) {
		t.Errorf("%s: rounded weights give the same logits", m.Family)
	}
	return nil
}

// roundParts rounds the tensors of a dense parameter each by itself, those of experts by expert.
func roundParts(w []float32, p *model.Param) {
	if p.W.Groups > 1 {
		n := p.W.Rows * p.W.Cols
		for g := range p.W.Groups {
			quant.FP8.Round(w[g*n:(g+1)*n], p.W.Rows, p.W.Cols)
		}
		return
	}
	for _, part := range p.Parts {
		if !strings.Contains(part.Name, "shared_expert_gate") {
			quant.FP8.Round(w[part.Row*p.W.Cols:(part.Row+part.Rows)*p.W.Cols], part.Rows, p.W.Cols)
		}
	}
}

// neighbour is a CPU that copies weights from memory that it can read, as a GPU does from another device of its card.
type neighbour struct {
	*cpu.Device
	blind          bool
	rounded, moved int // calls of FakeQuantize, and of Write: through the host
}

func (n *neighbour) CanRead(kernels.Device) bool { return !n.blind }

func (n *neighbour) FakeQuantize(out, x kernels.Tensor, e quant.Encoding) {
	n.rounded++
	n.Device.FakeQuantize(out, x, e)
}

func (n *neighbour) Write(dst kernels.Tensor, src []byte) {
	n.moved++
	n.Device.Write(dst, src)
}

// What a device copies from memory that it can read has the bits of the way through the host, and the host is not
// asked.
func TestCopyWeightsNear(t *testing.T) {
	for _, c := range copied {
		onTwo(t, c[0], c[1], func(r *parallel.Rank, m *model.Model, other kernels.Device) error {
			for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
				for _, format := range []quant.Encoding{quant.AsTrained, quant.FP8, quant.INT4} {
					if err := copiesNear(t, m, other.(*cpu.Device), dtype, format); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
}

// allIn is every projection in a format.
func allIn(format quant.Encoding) model.Encode { return model.Encode{As: format, Projections: true} }

func copiesNear(t *testing.T, m *model.Model, dev *cpu.Device, dtype kernels.DType, format quant.Encoding) error {
	t.Helper()
	var copies [2]*model.Model
	for i := range copies {
		n := &neighbour{Device: dev, blind: i == 1}
		dup, err := m.EmptyCopy(n, dtype, model.Encode{})
		if err != nil {
			return err
		}
		n.moved = 0
		if err := dup.CopyWeights(m, allIn(format)); err != nil {
			return err
		}
		if n.blind != (n.moved > 0) || !n.blind && (format == quant.AsTrained) != (n.rounded == 0) {
			t.Errorf("%s, %q: blind %t, %d roundings on the device, %d tensors through the host", m.Family, format,
				n.blind, n.rounded, n.moved)
		}
		copies[i] = dup
	}
	for i, p := range copies[0].Params {
		got, want := make([]byte, p.W.Bytes()), make([]byte, p.W.Bytes())
		dev.Read(got, p.W)
		dev.Read(want, copies[1].Params[i].W)
		if !bytes.Equal(got, want) {
			t.Errorf("%s, %s, %q: %s differs", m.Family, dtype, format, p)
		}
	}
	return nil
}

func TestCopyWeightsRefuses(t *testing.T) {
	onTwo(t, "qwen3_moe", "qwen3_moe", func(r *parallel.Rank, m *model.Model, other kernels.Device) error {
		dup, err := m.EmptyCopy(other, kernels.F32, model.Encode{})
		if err != nil {
			return err
		}
		if err := dup.CopyWeights(m, allIn("fp4")); err == nil || !strings.Contains(err.Error(), "fp4") {
			t.Errorf("a format that is none: %v", err)
		}
		for _, family := range []string{"qwen3", "toy"} {
			stranger, err := model.LoadFolder(r.Dev, filepath.Join("testdata", family), "", model.Options{})
			if err != nil {
				return err
			}
			if err := dup.CopyWeights(stranger, model.Encode{}); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("weights of %s: %v", family, err)
			}
		}
		return nil
	})
}
