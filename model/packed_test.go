package model_test

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Released checkpoints hold the experts of a layer as one tensor, files saved by transformers one for each: both load
// to the same model, and each is saved as it was.
func TestPackedExperts(t *testing.T) {
	const source = "testdata/qwen3_5_moe"
	dir := t.TempDir()
	config, err := os.ReadFile(filepath.Join(source, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	onRank(t, func(r *parallel.Rank) error {
		plain, err := model.LoadFolder(r.Dev, source, "", model.Options{})
		if err != nil {
			return err
		}
		if err := safetensors.WriteCheckpoint(dir, packedTensors(r, plain), 1<<30, nil); err != nil {
			return err
		}
		packed, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
		if err != nil {
			return err
		}
		for i, p := range plain.Params {
			if !slices.Equal(model.ReadValues(r.Dev, p.W), model.ReadValues(r.Dev, packed.Params[i].W)) {
				t.Errorf("%s differs", p)
			}
		}
		if want, got := tensorNames(packedTensors(r, plain)), tensorNames(packed.Tensors()); !slices.Equal(got,
			want) {
			t.Errorf("saved as %q, read as %q", got, want)
		}
		return nil
	})
}

// packedTensors is a model's tensors with all experts of a projection in one.
func packedTensors(r *parallel.Rank, m *model.Model) (all []safetensors.OutTensor) {
	for _, p := range m.Params {
		if p.Packed == nil {
			continue
		}
		raw := make([]byte, p.W.Bytes())
		r.Dev.Read(raw, p.W)
		all = append(all, safetensors.OutTensor{Name: p.Packed.Name, DType: "F32", Shape: p.Packed.Shape,
			Write: func(w io.Writer) error {
				_, err := w.Write(raw)
				return err
			}})
	}
	for _, o := range m.Tensors() {
		if !strings.Contains(o.Name, ".experts.") {
			all = append(all, o)
		}
	}
	return all
}

func tensorNames(all []safetensors.OutTensor) (names []string) {
	for _, o := range all {
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return names
}

// What decides the decays of a new model lies where the references draw it.
func TestInitialDecays(t *testing.T) {
	softplus := func(x float64) float64 { return math.Log1p(math.Exp(x)) }
	for family, want := range map[string]map[string]func(i int, v float64) bool{
		"qwen3_5": {
			"A_log":   func(_ int, v float64) bool { return math.Exp(v) >= 0.0099 && math.Exp(v) < 16.01 },
			"dt_bias": func(_ int, v float64) bool { return v == 1 },
		},
		"nemotron_h": {
			"A_log":   func(i int, v float64) bool { return math.Abs(math.Exp(v)-float64(i+1)) < 1e-5 },
			"dt_bias": func(_ int, v float64) bool { return softplus(v) > 0.99e-3 && softplus(v) < 0.101 },
			".D":      func(_ int, v float64) bool { return v == 1 },
		},
	} {
		onRank(t, func(r *parallel.Rank) error {
			config, err := os.ReadFile(filepath.Join("testdata", family, "config.json"))
			if err != nil {
				return err
			}
			m, err := model.Build(r.Dev, config, model.Options{DType: kernels.BF16})
			if err != nil {
				return err
			}
			m.Initialise(1)
			checked := map[string]int{}
			for _, p := range m.Params {
				for suffix, ok := range want {
					if !strings.HasSuffix(p.Name, suffix) {
						continue
					}
					values := model.ReadValues(r.Dev, p.W)
					for i, v := range values {
						if !ok(i, float64(v)) {
							t.Errorf("%s: element %d starts at %v", p, i, v)
						}
					}
					if p.W.DType != kernels.F32 {
						t.Errorf("%s is not fp32", p)
					}
					checked[suffix] += len(values)
				}
			}
			if len(checked) != len(want) {
				t.Errorf("%s: checked %v", family, checked)
			}
			return nil
		})
	}
}
