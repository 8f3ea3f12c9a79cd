package model_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/optim"
	"lockstep/parallel"
)

// sharedFactor tells whether a parameter of an adapter is one for all experts.
func sharedFactor(name string) bool {
	return strings.Contains(name, ".experts.") &&
		strings.HasSuffix(name, "lora_A.weight") != strings.Contains(name, "down_proj")
}

// With the same values in every expert, the gradient of a shared factor is the sum of what experts with factors each
// have, in their order, in every copy; all others are the same bits, and a norm counts one copy.
func TestSharedFactors(t *testing.T) {
	for _, dir := range []string{"qwen3_moe", "gpt_oss", "nemotron_h_latent", "kimi_k2"} {
		grads := func(shared bool) (names []string, list [][]float32, norm float64) {
			onRank(t, func(r *parallel.Rank) error {
				m, err := model.LoadFolder(r.Dev, "testdata/"+dir, "", model.Options{DType: kernels.F32})
				if err == nil {
					c := peft.Config{Rank: 4, Alpha: 8, Targets: []string{model.AllLinear}, SharedExperts: shared}
					if c, err = m.PEFT(c); err == nil {
						err = m.AddLoRA(c)
					}
				}
				if err != nil {
					return err
				}
				fillFactors(r, m)
				m.TrainAll()
				ids := make([]int32, 48)
				for i := range ids {
					ids[i] = int32(i * 7 % 30)
				}
				stepOf(r, m, ids, []int32{0, 20, 48})
				m.FinishGradients(r)
				var ws []optim.Weights
				for _, s := range m.Shards {
					names = append(names, s.Param.Name)
					list = append(list, parallel.Download[float32](r, s.Grad))
					ws = append(ws, optim.Weights{W: s.W, Grad: s.Grad, Copies: s.Copies()})
				}
				norm = optim.GradNorm(r, ws)
				return nil
			})
			return names, list, norm
		}
		names, own, _ := grads(false)
		_, got, norm := grads(true)
		found, squares := 0, 0.0
		for i, name := range names {
			want := own[i]
			if sharedFactor(name) {
				found++
				n := len(want) / experts(t, dir)
				sum := slices.Clone(want[:n])
				for at := n; at < len(want); at += n {
					for j := range sum {
						sum[j] += want[at+j]
					}
				}
				want = slices.Repeat(sum, experts(t, dir))
				for _, g := range sum {
					squares += float64(g) * float64(g)
				}
			} else {
				for _, g := range want {
					squares += float64(g) * float64(g)
				}
			}
			if !slices.Equal(got[i], want) {
				t.Errorf("%s: another gradient of %s", dir, name)
			}
		}
		if found == 0 {
			t.Errorf("%s: no factor is shared", dir)
		}
		if want := math.Sqrt(squares); math.Abs(norm-want) > 1e-5*want {
			t.Errorf("%s: norm %g, want %g", dir, norm, want)
		}
	}
}

// experts is how many a golden's layers have.
func experts(t *testing.T, dir string) (n int) {
	t.Helper()
	onRank(t, func(r *parallel.Rank) error {
		m, err := model.LoadFolder(r.Dev, "testdata/"+dir, "", model.Options{DType: kernels.F32})
		for _, p := range m.Params {
			if strings.Contains(p.Name, "experts") {
				n = max(n, p.W.Groups)
			}
		}
		return err
	})
	return n
}

// fillFactors draws adapters, the same for every expert where factors may be shared.
func fillFactors(r *parallel.Rank, m *model.Model) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range m.Params {
		if !strings.Contains(p.Name, "lora_") {
			continue
		}
		values := make([]byte, 0, p.W.Bytes())
		for len(values) < p.W.Bytes() {
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(float32(rng.NormFloat64()/8)))
			if each := p.W.Bytes() / p.W.Groups; sharedFactor(p.Name) && len(values) == each {
				values = slices.Repeat(values, p.W.Groups)
			}
		}
		r.Dev.Write(p.W, values)
	}
}

// A folder with shared factors has a copy for every expert, for PEFT, and says that they are one. One whose copies
// differ is refused.
func TestSharedFactorsFolder(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		const from = "testdata/qwen3_moe"
		saved, err := model.LoadFolder(r.Dev, from, "", model.Options{DType: kernels.F32})
		if err != nil {
			return err
		}
		c, err := saved.PEFT(peft.Config{Rank: 2, Alpha: 4, SharedExperts: true,
			Targets: []string{"gate_proj", "up_proj", "down_proj"}})
		if err == nil {
			err = saved.AddLoRA(c)
		}
		if err != nil {
			return err
		}
		fillFactors(r, saved)
		dir := t.TempDir()
		if err := saved.SaveAdapter(dir, from); err != nil {
			return err
		}
		mergesTo(t, r, "shared", from, dir)
		open := func() (*model.Model, error) {
			m, err := model.LoadFolder(r.Dev, from, "", model.Options{DType: kernels.F32})
			if err == nil {
				err = m.AddAdapter(dir)
			}
			return m, err
		}
		m, err := open()
		if err != nil {
			return err
		}
		if !m.LoRA.SharedExperts {
			t.Error("the folder does not say that factors are shared")
		}
		if err := m.SameAdapters(peft.Config{}); err == nil || !strings.Contains(err.Error(), "shared factors") {
			t.Errorf("factors each: %v", err)
		}
		name := filepath.Join(dir, peft.File)
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for said, want := range map[string]string{`"each"`: "want \"shared\"", `7`: "want \"shared\""} {
			bad := strings.Replace(string(text), `"experts": "shared"`, `"experts": `+said, 1)
			if err := os.WriteFile(name, []byte(bad), 0o644); err != nil {
				return err
			}
			if _, err := open(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("experts %s: %v", said, err)
			}
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
		file := filepath.Join(dir, "adapter_model.safetensors")
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		raw[len(raw)-1] ^= 1 // a factor of the last expert, as tensors end with it
		if err := os.WriteFile(file, raw, 0o644); err != nil {
			return err
		}
		if _, err := open(); err == nil || !strings.Contains(err.Error(), "those of experts 0 and") {
			t.Errorf("copies that differ: %v", err)
		}
		return nil
	})
}

// PEFT's "all-linear" has adapters on routers of some mixtures: they are refused by what they are, and modules_to_save
// trains a router.
func TestRouterTargets(t *testing.T) {
	onRank(t, func(r *parallel.Rank) error {
		routers := map[string]string{"qwen3_moe": "mlp.gate", "glm4_moe": "mlp.gate", "gpt_oss": "mlp.router"}
		for dir, router := range routers {
			for _, c := range []peft.Config{
				{Rank: 2, Alpha: 1, Targets: []string{"q_proj", router}},
				{Rank: 2, Alpha: 1, Targets: []string{"q_proj"}, TargetParameters: []string{router + ".weight"}},
			} {
				m, err := model.LoadFolder(r.Dev, "testdata/"+dir, "", model.Options{DType: kernels.F32})
				if err != nil {
					return err
				}
				if err := m.AddLoRA(c); err == nil || !strings.Contains(err.Error(), "is the router of a mixture") {
					t.Errorf("%s, %+v: %v", dir, c, err)
				}
				c = peft.Config{Rank: 2, Alpha: 1, Targets: []string{"q_proj"}, ModulesToSave: []string{router}}
				if err := m.AddLoRA(c); err != nil {
					t.Errorf("%s: %v", dir, err)
				}
			}
		}
		return nil
	})
}
