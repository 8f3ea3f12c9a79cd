package model_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// folderLogits are those of a folder, with an adapter if there is one, of some ids.
func folderLogits(t *testing.T, r *parallel.Rank, dir, adapter string, dtype kernels.DType) []float32 {
	t.Helper()
	m, err := model.LoadFolder(r.Dev, dir, adapter, model.Options{DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for i := range 24 {
		ids = append(ids, int32((i*i*7+3)%(m.Vocab-3)+3))
	}
	b, _ := packed(r, ids)
	return model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
}

func largestApart(a, b []float32) (most, of float64) {
	for i := range a {
		most = max(most, math.Abs(float64(a[i])-float64(b[i])))
		of = max(of, math.Abs(float64(a[i])))
	}
	return most, of
}

// drawnAdapter is an adapter folder on every projection of a golden, with a B that is not 0.
func drawnAdapter(t *testing.T, r *parallel.Rank, dir string, c peft.Config) string {
	t.Helper()
	m, err := adapted(r, dir, kernels.F32, c)
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := m.SaveAdapter(out, dir); err != nil {
		t.Fatal(err)
	}
	return out
}

// A merged folder computes what the base computes with the adapter: every family, adapters on every projection, experts
// included, ranks and scales of single projections, and those that PEFT wrote.
func TestMerge(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		for _, golden := range goldens {
			dir := filepath.Join("testdata", golden)
			adapter := drawnAdapter(t, r, dir, peft.Config{Rank: 3, Alpha: 4, Targets: []string{model.AllLinear},
				RankPattern: []peft.ModuleValue{{Pattern: ".*o_proj", Value: 2}}})
			mergesTo(t, r, golden, dir, adapter)
		}
		for adapter, golden := range map[string]string{
			"excluded": "qwen3", "fused": "qwen3_moe", "layers": "qwen3", "modules_to_save": "glm4_moe",
			"olora": "qwen3", "patterns": "qwen3", "pissa": "qwen3", "pissa_gpt_oss": "gpt_oss", "glm5": "glm5",
			"gpt_oss": "gpt_oss", "nemotron_h_latent": "nemotron_h_latent", "qwen3_moe_experts": "qwen3_moe",
		} {
			mergesTo(t, r, adapter, filepath.Join("testdata", golden), filepath.Join("testdata", "adapters", adapter))
		}
		return nil
	})
}

func mergesTo(t *testing.T, r *parallel.Rank, name, dir, adapter string) {
	t.Helper()
	out := t.TempDir()
	done, err := model.MergeFolder(t.Context(), dir, adapter, out, kernels.F32)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	want, plain := folderLogits(t, r, dir, adapter, kernels.F32), folderLogits(t, r, dir, "", kernels.F32)
	got := folderLogits(t, r, out, "", kernels.F32)
	off, of := largestApart(want, got)
	if change, _ := largestApart(want, plain); off > 1e-5*of || change < 1e-2*of || done.Projections == 0 {
		t.Errorf("%s: %d projections merged, logits up to %g off by %g, the adapter changes them by %g", name,
			done.Projections, of, off, change)
	}
}

// A merge into bf16 is the sum in fp32, rounded once: not the sum of what was rounded before.
func TestMergeRoundsOnce(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		dir := filepath.Join("testdata", "qwen3_moe")
		adapter := drawnAdapter(t, r, dir, peft.Config{Rank: 3, Alpha: 4, Targets: []string{model.AllLinear}})
		whole, half := t.TempDir(), t.TempDir()
		for out, dtype := range map[string]kernels.DType{whole: kernels.F32, half: kernels.BF16} {
			if _, err := model.MergeFolder(t.Context(), dir, adapter, out, dtype); err != nil {
				return err
			}
		}
		exact, err := safetensors.OpenCheckpoint(whole)
		if err != nil {
			return err
		}
		defer exact.Close()
		rounded, err := safetensors.OpenCheckpoint(half)
		if err != nil {
			return err
		}
		defer rounded.Close()
		for _, name := range exact.Names() {
			a, _ := exact.Tensor(name)
			b, ok := rounded.Tensor(name)
			want, got := make([]float32, a.Len()), make([]float32, a.Len())
			if !ok || b.DType != "BF16" || safetensors.ToF32(want, a) != nil || safetensors.ToF32(got, b) != nil {
				t.Fatalf("%s: %+v", name, b)
			}
			for i, x := range want {
				if kernels.FromBF16(kernels.RoundBF16(x)) != got[i] {
					t.Fatalf("%s: %g becomes %g", name, x, got[i])
				}
			}
		}
		return nil
	})
}

// A merge with a release in codes is one with the numbers that they stand for.
func TestMergeRelease(t *testing.T) {
	r, adapter := mxfp4Release(t), filepath.Join("testdata", "adapters", "gpt_oss")
	coded, plain := t.TempDir(), t.TempDir()
	done, err := model.MergeFolder(t.Context(), r.write(t), adapter, coded, kernels.F32)
	if err != nil || done.Decoded == "" {
		t.Fatalf("%+v (%v)", done, err)
	}
	done, err = model.MergeFolder(t.Context(), r.writePlain(t, kernels.F32), adapter, plain, kernels.F32)
	if err != nil || done.Decoded != "" {
		t.Fatalf("%+v (%v)", done, err)
	}
	sameFolder(t, coded, plain)
	pissa := filepath.Join("testdata", "adapters", "pissa_gpt_oss")
	if _, err := model.MergeFolder(t.Context(), r.write(t), pissa, t.TempDir(), kernels.F32); err == nil ||
		!strings.Contains(err.Error(), "bf16 or fp32") {
		t.Errorf("PiSSA on a release in codes: error %v", err)
	}
}

// What does not belong together is refused in a line, and a sum that is not finite too.
func TestMergeRefuses(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		dir := filepath.Join("testdata", "qwen3")
		good := drawnAdapter(t, r, dir, peft.Config{Rank: 2, Alpha: 4, Targets: []string{"q_proj"}})
		config := func(change func(string) string) string {
			out := t.TempDir()
			for _, name := range []string{peft.File, "adapter_model.safetensors"} {
				text, err := os.ReadFile(filepath.Join(good, name))
				if err != nil {
					t.Fatal(err)
				}
				if name == peft.File {
					text = []byte(change(string(text)))
				}
				if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			return out
		}
		replace := func(old, now string) string {
			return config(func(s string) string { return strings.Replace(s, old, now, 1) })
		}
		for want, adapter := range map[string]string{
			"no adapter_config.json":    t.TempDir(),
			"no tensor":                 replace("q_proj", "v_proj"),
			"shape":                     replace(`"r": 2`, `"r": 3`),
			"unexpected tensors":        replace(`exclude_modules": null`, `exclude_modules": ["0.self_attn.q_proj"]`),
			"not finite":                replace(`"lora_alpha": 4`, `"lora_alpha": 1e39`),
			"use_dora is not supported": replace(`"use_dora": false`, `"use_dora": true`),
			"matches nothing":           replace("q_proj", "nose"),
		} {
			if _, err := model.MergeFolder(t.Context(), dir, adapter, t.TempDir(), kernels.F32); err == nil ||
				!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, want)
			}
		}
		return nil
	})
}
