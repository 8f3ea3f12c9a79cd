package model_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
)

// The goldens under testdata were computed by transformers 5.17 and PEFT 0.21 in fp32; their tolerances are those that
// a right fp32 implementation meets.

// goldens are folders of testdata, a tiny checkpoint of a family each.
var goldens = []string{
	"deepseek_v3_grouped", "glm4_moe", "glm4_moe_lite", "glm5", "glm5_shared", "gpt_oss", "kimi_k2", "kimi_k25_wrapped",
	"llama3", "minimax_m2", "nemotron_h", "nemotron_h_latent", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_wrapped",
	"qwen3_moe", "qwen3_next", "toy",
}

// latent is the goldens with latent attention, which the definition has two forms of.
var latent = []string{"deepseek_v3_grouped", "glm4_moe_lite", "glm5", "glm5_shared", "kimi_k2", "kimi_k25_wrapped"}

// eachForm runs body for each golden by the default definition, for those with latent attention by either form.
func eachForm(t *testing.T, body func(t *testing.T, family string, def kernels.Definition)) {
	for _, family := range goldens {
		for name, def := range forms(family) {
			t.Run(family+name, func(t *testing.T) { body(t, family, def) })
		}
	}
}

// forms are the definitions that a family is tried by.
func forms(family string) map[string]kernels.Definition {
	def := kernels.Default()
	if !slices.Contains(latent, family) {
		return map[string]kernels.Definition{"": def}
	}
	expanded, absorbed := def, def
	expanded.Latent, absorbed.Latent = kernels.LatentExpanded, kernels.LatentAbsorbed
	return map[string]kernels.Definition{" expanded": expanded, " absorbed": absorbed}
}

type golden struct {
	t *testing.T
	c *safetensors.Checkpoint
}

func openGolden(t *testing.T, dir string) golden {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return golden{t, f.Checkpoint()}
}

func (g golden) f32(name string) []float32 {
	g.t.Helper()
	info, ok := g.c.Tensor(name)
	if !ok {
		g.t.Fatalf("golden has no %s", name)
	}
	n := 1
	for _, d := range info.Shape {
		n *= d
	}
	out := make([]float32, n)
	if err := safetensors.ToF32(out, info); err != nil {
		g.t.Fatal(err)
	}
	return out
}

func (g golden) ids(name string) []int32 {
	g.t.Helper()
	info, ok := g.c.Tensor(name)
	if !ok || info.DType != "I64" {
		g.t.Fatalf("golden has no int64 %s", name)
	}
	var out []int32
	for i := 0; i < len(info.Data); i += 8 {
		out = append(out, int32(uint32(info.Data[i])|uint32(info.Data[i+1])<<8|uint32(info.Data[i+2])<<16))
	}
	return out
}

// onRank runs body on a CPU device with the default definition.
func onRank(t *testing.T, body func(r *parallel.Rank) error) {
	t.Helper()
	onRankBy(t, kernels.Default(), body)
}

// onRankBy runs body on a CPU device with a definition.
func onRankBy(t *testing.T, def kernels.Definition, body func(r *parallel.Rank) error) {
	t.Helper()
	dev, err := cpu.New(def, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := parallel.Run([]kernels.Device{dev}, body); err != nil {
		t.Fatal(err)
	}
}

func near(t *testing.T, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	worst := 0.0
	for i := range got {
		if d := math.Abs(float64(got[i]) - float64(want[i])); d > worst || math.IsNaN(d) {
			worst = d
		}
	}
	if worst > tolerance || math.IsNaN(worst) {
		t.Errorf("%s: off by %g, tolerance %g", what, worst, tolerance)
	}
}

// packed lays the sequences out as one batch with next-token targets.
func packed(r *parallel.Rank, seqs ...[]int32) (b *model.Batch, targets []int32) {
	var ids []int32
	l := &kernels.Layout{}
	for _, s := range seqs {
		l.Spans = append(l.Spans, kernels.Span{Row: len(ids), Rows: len(s)})
		ids = append(ids, s...)
		targets = append(append(targets, s[1:]...), -1)
	}
	l.Segments = []int32{0, int32(len(ids))}
	return model.NewBatch(r, ids, l, nil), targets
}

// lossAndGradients runs one training micro-batch and returns the mean loss.
func lossAndGradients(r *parallel.Rank, m *model.Model, recompute bool, seqs ...[]int32) float64 {
	if recompute {
		return lossAndGradientsBy(r, m, m.Everywhere(0), seqs...)
	}
	return lossAndGradientsBy(r, m, nil, seqs...)
}

// lossAndGradientsBy is lossAndGradients with a choice of what blocks keep.
func lossAndGradientsBy(r *parallel.Rank, m *model.Model, policy model.Policy, seqs ...[]int32) float64 {
	defer r.Stack.Release(r.Stack.Mark())
	b, targets := packed(r, seqs...)
	n := 0
	for _, t := range targets {
		if t >= 0 {
			n++
		}
	}
	rows := optim.Rows{Targets: targets, Weight: slices.Repeat([]float32{float32(1 / float64(n))}, len(targets))}
	d := make([]float32, len(targets))
	optim.SFT{}.Derivative(d, rows)
	derivative := parallel.Upload(r, d)
	logprob := r.Stack.New(kernels.F32, 1, len(targets))
	m.Step(r, &model.Share{Passes: []*model.Pass{{Batch: b, LogProb: logprob,
		Targets: model.Targets{IDs: parallel.Upload(r, targets)}, Loss: model.Loss{Derivative: derivative.ColRange}}}},
		policy)
	m.FinishGradients(r)
	var sums optim.Measures
	rows.LogProb = parallel.Download[float32](r, logprob)
	optim.SFT{}.Measure(&sums, rows)
	return sums.Loss
}

// inMemory is what transformers calls tensors that lie on disk under another name.
var inMemory = strings.NewReplacer("backbone.", "model.", "language_model.model.", "model.language_model.",
	"language_model.lm_head.", "lm_head.")

// The config of nemotron_h asks for steps of 0.001 at least (time_step_limit), which the reference takes from
// time_step_min whatever the limit says.

// unsteady families have goldens whose routing depends on differences that fp32 cannot hold: the reference in fp64
// leaves its own record in fp32 by 0.067 of 6.18 within the ten steps (and by 0.046 on another machine). Their
// gradients meet the bound of all others.
var unsteady = map[string]bool{"qwen3_5_moe": true, "qwen3_5_moe_wrapped": true}

// rough families leave their fp32 record further in bf16: the reference in bf16 with fp32 masters leaves that of
// kimi_k2 by 0.018 of the first loss and that of glm5 by 0.026 (glm4_moe: 0.004).
var rough = map[string]bool{"glm5": true, "glm5_shared": true, "kimi_k2": true, "kimi_k25_wrapped": true}

func TestGoldenForward(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		dir := filepath.Join("testdata", family)
		g := openGolden(t, dir)
		onRankBy(t, def, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
			if err != nil {
				return err
			}
			for s := range 2 {
				g.forward(r, m, s)
			}
			return nil
		})
	})
}

func (g golden) forward(r *parallel.Rank, m *model.Model, s int) {
	g.t.Helper()
	b, _ := packed(r, g.ids(fmt.Sprintf("ids.%d", s)))
	b.Prepare(r, m)
	x := r.Stack.New(m.DType, b.Rows(), m.Hidden)
	r.Dev.Embed(x, m.Embed.W, b.IDs)
	hidden := func(l int) string { return fmt.Sprintf("hidden.%d.%d", s, l) }
	near(g.t, hidden(0), model.ReadValues(r.Dev, x), g.f32(hidden(0)), 2e-4)
	for i, bl := range m.Blocks[:len(m.Blocks)-1] {
		y := r.Stack.New(x.DType, x.Rows, x.Cols)
		bl.Forward(r, y, x, b, nil)
		x = y
		near(g.t, hidden(i+1), model.ReadValues(r.Dev, x), g.f32(hidden(i+1)), 2e-4)
	}
	x = m.Forward(r, b, nil)
	last := m.Head.Norm.Forward(r, x, nil)
	near(g.t, "final norm", model.ReadValues(r.Dev, last), g.f32(hidden(len(m.Blocks))), 2e-4)
	near(g.t, "logits", model.ReadValues(r.Dev, m.Head.Logits(r, x)), g.f32(fmt.Sprintf("logits.%d", s)), 2e-4)
}

func TestGoldenGradients(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		for _, recompute := range []bool{false, true} {
			t.Run(fmt.Sprintf("recompute=%v", recompute), func(t *testing.T) {
				dir := filepath.Join("testdata", family)
				g := openGolden(t, dir)
				onRankBy(t, def, func(r *parallel.Rank) error {
					m, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
					if err != nil {
						return err
					}
					m.TrainAll()
					loss := lossAndGradients(r, m, recompute, g.ids("ids.0"), g.ids("ids.1"))
					near(t, "loss", []float32{float32(loss)}, g.f32("loss"), 1e-5)
					g.gradients(r, m, func(name string) string { return "grad." + inMemory.Replace(name) })
					return nil
				})
			})
		}
	})
}

// gradients compares every golden gradient; parameters whose parts lie apart on disk are compared whole, in memory
// layout.
func (g golden) gradients(r *parallel.Rank, m *model.Model, name func(string) string) {
	g.t.Helper()
	seen := 0
	for _, p := range m.Trained() {
		values := model.ReadValues(r.Dev, p.Grad)
		if _, ok := g.c.Tensor(name(p.Name)); ok && len(g.f32(name(p.Name))) == len(values) && p.Parts[0].Disk == nil {
			g.gradient(name(p.Name), values)
			seen++
			continue
		}
		for _, part := range p.Parts {
			g.gradient(name(part.Name), p.Gradient(r.Dev, part))
			seen++
		}
	}
	want := 0
	for _, n := range g.c.Names() {
		if strings.HasPrefix(n, "grad.") {
			want++
		}
	}
	if seen != want {
		g.t.Errorf("compared %d gradients, the golden has %d", seen, want)
	}
}

func (g golden) gradient(name string, got []float32) {
	g.t.Helper()
	want := g.f32(name)
	largest := 0.0
	for _, v := range want {
		largest = max(largest, math.Abs(float64(v)))
	}
	near(g.t, name, got, want, 1e-3*largest)
}

// Training in bf16 has the same trajectory with rounded activations: fp32 masters are what it needs for that.
func TestGoldenAdamW(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		for dtype, tolerance := range map[kernels.DType]float64{kernels.F32: 1e-4, kernels.BF16: 1e-2} {
			if unsteady[family] {
				tolerance += 0.04
			}
			if dtype == kernels.BF16 && rough[family] {
				tolerance += 0.01
				// queries and outputs are rounded once more: kimi_k2 leaves its record by 0.022
				if def.Latent == kernels.LatentAbsorbed {
					tolerance += 0.005
				}
			}
			t.Run(dtype.String(), func(t *testing.T) {
				dir := filepath.Join("testdata", family)
				g := openGolden(t, dir)
				onRankBy(t, def, func(r *parallel.Rank) error {
					m, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: dtype})
					if err != nil {
						return err
					}
					want := g.f32("sft_loss")
					near(t, "sft_loss", adamW(r, m, 10, g.ids("ids.0"), g.ids("ids.1")), want,
						tolerance*float64(want[0]))
					return nil
				})
			})
		}
	})
}

// adamW is the losses of some steps on the same batch.
func adamW(r *parallel.Rank, m *model.Model, steps int, seqs ...[]int32) (losses []float32) {
	m.TrainAll()
	var ws []optim.Weights
	for _, s := range m.Shards {
		w := optim.Weights{W: s.W, Grad: s.Grad}
		for _, st := range s.States {
			w.States = append(w.States, optim.State{W: st.W, Master: st.Moved.Master, M: st.Moved.M, V: st.Moved.V,
				Grad: st.Grad})
		}
		ws = append(ws, w)
	}
	a := optim.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}
	for step := range steps {
		losses = append(losses, float32(lossAndGradients(r, m, false, seqs...)))
		a.Step(r, ws, 1, 1e-3, step+1)
	}
	return losses
}

func TestGoldenAdapters(t *testing.T) {
	for adapter, family := range map[string]string{
		"glm4_moe": "glm4_moe", "glm5": "glm5", "gpt_oss": "gpt_oss", "llama3": "llama3", "minimax_m2": "minimax_m2",
		"nemotron_h_latent": "nemotron_h_latent",
		"qwen3":             "qwen3", "qwen3_moe": "qwen3_moe", "qwen3_moe_experts": "qwen3_moe",
		"qwen3_next": "qwen3_next",
	} {
		for name, def := range forms(family) {
			t.Run(adapter+name, func(t *testing.T) { adapterIsGolden(t, adapter, family, def) })
		}
	}
}

func adapterIsGolden(t *testing.T, adapter, family string, def kernels.Definition) {
	dir := filepath.Join("testdata", "adapters", adapter)
	g := openGolden(t, dir)
	onRankBy(t, def, func(r *parallel.Rank) error {
		m, err := model.LoadFolder(r.Dev, filepath.Join("testdata", family), dir, model.Options{})
		if err != nil {
			return err
		}
		b, _ := packed(r, g.ids("ids"))
		near(t, "logits", model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil))), g.f32("logits"), 2e-4)
		m.TrainAll()
		near(t, "loss", []float32{float32(lossAndGradients(r, m, false, g.ids("ids")))}, g.f32("loss"), 1e-5)
		g.adapterGradients(r, m)
		return nil
	})
}

// Settings of PEFT that change more than A and B: ranks and scales of single modules, layers, excluded modules, modules
// that are saved, and initialisations that change the base as it is loaded.
func TestGoldenAdapterSettings(t *testing.T) {
	for adapter, family := range map[string]string{
		"excluded": "qwen3", "fused": "qwen3_moe", "layers": "qwen3", "modules_to_save": "glm4_moe", "olora": "qwen3",
		"patterns": "qwen3", "pissa": "qwen3", "pissa_gpt_oss": "gpt_oss",
	} {
		t.Run(adapter, func(t *testing.T) {
			dir := filepath.Join("testdata", "adapters", adapter)
			g := openGolden(t, dir)
			onRank(t, func(r *parallel.Rank) error {
				base, again := filepath.Join("testdata", family), t.TempDir()
				m, err := model.LoadFolder(r.Dev, base, dir, model.Options{})
				if err != nil {
					return err
				}
				logits := func(m *model.Model) []float32 {
					b, _ := packed(r, g.ids("ids"))
					return model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
				}
				want := logits(m)
				largest := 0.0
				for _, v := range g.f32("logits") {
					largest = max(largest, math.Abs(float64(v)))
				}
				near(t, "logits", want, g.f32("logits"), 1e-5*largest)
				if err := m.SaveAdapter(again, base); err != nil {
					return err
				}
				if m, err = model.LoadFolder(r.Dev, base, again, model.Options{}); err != nil {
					return err
				}
				if !slices.Equal(logits(m), want) {
					t.Error("saved and loaded again it has other logits")
				}
				return nil
			})
		})
	}
}

// adapterGradients compares every adapter gradient through what AdapterGradients writes: the names and layout of PEFT.
func (g golden) adapterGradients(r *parallel.Rank, m *model.Model) {
	g.t.Helper()
	path := filepath.Join(g.t.TempDir(), "grads.safetensors")
	if err := safetensors.Write(path, m.AdapterGradients(), nil); err != nil {
		g.t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		g.t.Fatal(err)
	}
	defer f.Close()
	ours := golden{g.t, f.Checkpoint()}
	var names []string
	for _, n := range g.c.Names() {
		if strings.HasPrefix(n, "grad.") {
			names = append(names, n)
			g.gradient(n, ours.f32(strings.Replace(strings.TrimPrefix(n, "grad."), ".default.", ".", 1)))
		}
	}
	if len(names) != len(ours.c.Names()) || len(names) == 0 {
		g.t.Errorf("compared %d gradients, we wrote %d", len(names), len(ours.c.Names()))
	}
}

func TestFamilies(t *testing.T) {
	if got := model.Families(); !slices.Equal(got, []string{
		"deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "kimi_k2", "kimi_k25", "llama",
		"minimax_m2", "nemotron_h", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
		"qwen3_next", "toy",
	}) {
		t.Errorf("families %v", got)
	}
}
