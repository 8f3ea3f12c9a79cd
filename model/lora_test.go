package model_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/model/peft"
)

// The term of an adapter is scaled by alpha / r, rank-stabilised by alpha / sqrt(r) (Kalajdzievski, arXiv
// 2312.03732).
func TestAdapterScale(t *testing.T) {
	for stabilised, want := range map[bool]float32{false: 0.75, true: 3} {
		m := described(t, "qwen3")
		err := m.AddLoRA(peft.Config{Rank: 16, Alpha: 12, Targets: []string{"q_proj"}, RankStabilised: stabilised})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Blocks[0][0].Layer.Linears()[0].Subs[0].LoRA.Scale; got != want {
			t.Errorf("rank-stabilised %v: scale %g, want %g", stabilised, got, want)
		}
	}
}

// adaptedModules are those with an adapter.
func adaptedModules(m *model.Model) (list []string) {
	for _, b := range m.Blocks {
		for _, s := range b {
			for _, l := range s.Layer.Linears() {
				for _, sub := range l.Subs {
					if sub.LoRA != nil {
						list = append(list, sub.Module)
					}
				}
			}
		}
	}
	return list
}

// A pattern is for the full name of a module and never for experts; a target ends at a dot.
func TestTargetMatch(t *testing.T) {
	targets := func(t ...string) peft.Config { return peft.Config{Targets: t} }
	parameters := func(t ...string) peft.Config { return peft.Config{TargetParameters: t} }
	for _, c := range []struct {
		golden  string
		targets peft.Config
		want    []string // nil: nothing, which is an error
	}{
		{"qwen3", peft.Config{Pattern: `model\.layers\.0|.*1\.self_attn\.o_proj`},
			[]string{"model.layers.1.self_attn.o_proj"}},
		{"qwen3", peft.Config{Pattern: `.*0\.self_attn\.o_proj|self_attn\.q_proj`},
			[]string{"model.layers.0.self_attn.o_proj"}},
		{"qwen3", peft.Config{Pattern: `q_proj`}, nil},
		{"qwen3_moe", peft.Config{Pattern: `.*down_proj`}, nil},
		{"qwen3", targets("layers.1.self_attn.q_proj"), []string{"model.layers.1.self_attn.q_proj"}},
		{"qwen3", targets("model.layers.1.self_attn.q_proj"), []string{"model.layers.1.self_attn.q_proj"}},
		{"qwen3", parameters("0.mlp.up_proj.weight"), []string{"model.layers.0.mlp.up_proj"}},
		{"kimi_k2", targets("b_proj"), nil}, // not q_b_proj
		{"qwen3_moe", parameters("up_proj"), nil},
		{"qwen3_moe", targets("gate_up_proj"), nil}, // a parameter, not a module
		{"qwen3", targets("0.self_attn.q_proj", "nose"), nil},
	} {
		m := described(t, c.golden)
		c.targets.Rank, c.targets.Alpha = 2, 1
		err := m.AddLoRA(c.targets)
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), "matches nothing") {
				t.Errorf("%s %+v: error %v, adapters on %v", c.golden, c.targets, err, adaptedModules(m))
			}
			continue
		}
		if got := adaptedModules(m); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s %+v: adapters on %v, want %v (%v)", c.golden, c.targets, got, c.want, err)
		}
	}
}

// PEFT wraps the experts of a layer once for each weight that is a target there, whatever it is in other layers.
func TestAdapterNamesOfExperts(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m, err := model.LoadFolder(dev, filepath.Join("testdata", "qwen3_moe"), "", model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = m.AddLoRA(peft.Config{Rank: 2, Alpha: 1, TargetParameters: []string{
		"layers.0.mlp.experts.gate_up_proj", "layers.1.mlp.experts.gate_up_proj", "layers.1.mlp.experts.down_proj"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tensor := range m.AdapterTensors() {
		name, is := strings.CutSuffix(strings.TrimPrefix(tensor.Name, "base_model.model.model.layers."),
			".lora_A.weight")
		if is {
			got = append(got, name)
		}
	}
	if want := []string{"0.mlp.experts", "1.mlp.experts.base_layer", "1.mlp.experts"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A tensor of an adapter file that no adapter takes is an error that names it, as is one that is not there.
func TestAdapterTensors(t *testing.T) {
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	base := filepath.Join("testdata", "qwen3_moe")
	for name, change := range map[string]func([]safetensors.OutTensor) []safetensors.OutTensor{
		"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": func(
			all []safetensors.OutTensor) []safetensors.OutTensor {
			more := all[0]
			more.Name = "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"
			return append(all, more)
		},
		"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": func(
			all []safetensors.OutTensor) []safetensors.OutTensor {
			return slices.DeleteFunc(all, func(o safetensors.OutTensor) bool {
				return strings.Contains(o.Name, "layers.0.self_attn.q_proj.lora_A")
			})
		},
		"": func(all []safetensors.OutTensor) []safetensors.OutTensor { return all },
	} {
		m, err := model.LoadFolder(dev, base, "", model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.AddLoRA(peft.Config{Rank: 2, Alpha: 1, Targets: []string{"q_proj"}}); err != nil {
			t.Fatal(err)
		}
		m.InitialiseAdapters(1)
		dir := t.TempDir()
		if err := m.SaveAdapter(dir, base); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "adapter_model.safetensors")
		if err := safetensors.Write(path, change(m.AdapterTensors()), nil); err != nil {
			t.Fatal(err)
		}
		_, err = model.LoadFolder(dev, base, dir, model.Options{})
		switch {
		case name == "" && err != nil, name != "" && (err == nil || !strings.Contains(err.Error(), name)):
			t.Errorf("%q: error %v", name, err)
		}
	}
}

// described builds a golden's model without weights.
func described(t *testing.T, golden string) *model.Model {
	t.Helper()
	config, err := os.ReadFile(filepath.Join("testdata", golden, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Describe(config, kernels.F32)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Names that people use reach what they mean, in PEFT's terms.
func TestTargetNames(t *testing.T) {
	mlp := []string{"gate_proj", "up_proj", "down_proj"}
	experts := []string{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
	for _, c := range []struct {
		golden              string
		targets, parameters []string
		wantTargets, want   []string
	}{
		{"qwen3", mlp, nil, mlp, nil},
		{"qwen3_moe", mlp, nil, nil, experts},
		{"qwen3_moe", []string{"q_proj", "down_proj"}, nil, []string{"q_proj"}, experts[1:]},
		{"qwen3_moe", mlp, experts[1:], nil, []string{experts[1], experts[0]}},
		{"qwen3_moe", []string{"down_proj"}, []string{"experts.down_proj"}, nil, []string{"experts.down_proj"}},
		{"qwen3_moe", []string{"gate_up_proj"}, nil, nil, experts[:1]},
		{"glm4_moe", append(mlp, "q_proj"), nil, []string{"q_proj"}, // shared experts and the first layer have modules
			[]string{experts[0], "gate_proj.weight", "up_proj.weight", experts[1], "down_proj.weight"}},
		{"glm4_moe", []string{"mlp.down_proj", "shared_experts.gate_proj"}, nil, nil,
			[]string{"mlp.down_proj.weight", "shared_experts.gate_proj.weight"}},
		{"gpt_oss", append(mlp, "o_proj"), nil, []string{"o_proj"}, experts},
		{"nemotron_h", []string{"up_proj"}, nil, []string{"up_proj"}, []string{"mixer.experts.up_proj"}},
		{"qwen3", []string{"nose"}, nil, []string{"nose"}, nil},
		{"qwen3_moe", []string{"all-linear"}, nil, []string{"q_proj", "k_proj", "v_proj", "o_proj"}, experts},
		{"deepseek_v3_grouped", []string{"all-linear"}, nil,
			[]string{"kv_a_proj_with_mqa", "q_proj", "kv_b_proj", "o_proj"},
			append(experts, "gate_proj.weight", "up_proj.weight", "down_proj.weight")},
		{"nemotron_h", []string{"in_proj", "out_proj"}, nil, []string{"in_proj", "out_proj"}, nil},
		{"qwen3_next", []string{"out_proj"}, nil, []string{"out_proj"}, nil},
	} {
		m := described(t, c.golden)
		got, err := m.PEFT(peft.Config{Rank: 2, Alpha: 4, Targets: c.targets, TargetParameters: c.parameters})
		if err != nil || !slices.Equal(got.Targets, c.wantTargets) || !slices.Equal(got.TargetParameters, c.want) {
			t.Errorf("%s %v %v: %v and %v, want %v and %v (%v)", c.golden, c.targets, c.parameters, got.Targets,
				got.TargetParameters, c.wantTargets, c.want, err)
			continue
		}
		if err := m.AddLoRA(got); (err != nil) != (c.targets[0] == "nose") {
			t.Errorf("%s %v: %v", c.golden, c.targets, err)
		}
	}
	for _, c := range []struct {
		targets []string
		want    string
	}{
		{[]string{"gate_proj"}, `add "up_proj"`},
		{[]string{"up_proj", "down_proj"}, `add "gate_proj"`},
		{[]string{"all-linear", "q_proj"}, "stands alone"},
	} {
		_, err := described(t, "qwen3_moe").PEFT(peft.Config{Rank: 2, Alpha: 4, Targets: c.targets})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v, want one line with %q", c.targets, err, c.want)
		}
	}
}

// With "all-linear" every projection of every golden has an adapter but for Mamba's out_proj, on which PEFT puts
// none.
func TestAllLinear(t *testing.T) {
	for _, golden := range goldens {
		m := described(t, golden)
		c, err := m.PEFT(peft.Config{Rank: 2, Alpha: 4, Targets: []string{model.AllLinear}})
		if err == nil {
			err = m.AddLoRA(c)
		}
		if err != nil {
			t.Errorf("%s: %v", golden, err)
			continue
		}
		for _, b := range m.Blocks {
			for _, s := range b {
				for _, l := range s.Layer.Linears() {
					for _, sub := range l.Subs {
						mamba := m.Family == "nemotron_h" && strings.HasSuffix(sub.Module, ".out_proj")
						if (sub.LoRA == nil) != mamba {
							t.Errorf("%s: %s has an adapter: %v", golden, sub.Module, sub.LoRA != nil)
						}
					}
				}
			}
		}
	}
}
