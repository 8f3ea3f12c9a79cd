package model_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// saves are the results that a block may keep one by one.
var saves = []model.Save{model.SaveProjections, model.SaveAttention, model.SaveResidual, model.SaveGateUp,
	model.SaveExperts}

// policies are choices of what blocks keep: nothing, each result alone, all of them, everything, and drawn ones that
// differ from block to block.
func policies(m *model.Model) map[string]model.Policy {
	all := map[string]model.Policy{"nothing": m.Everywhere(0), "everything": m.Everywhere(model.SaveAll)}
	union := model.Save(0)
	for i, s := range saves {
		all[fmt.Sprintf("result %d", i)] = m.Everywhere(s)
		union |= s
	}
	all["all results"] = m.Everywhere(union)
	for seed := range uint64(3) {
		rng, p := rand.New(rand.NewPCG(seed, 1)), m.Everywhere(0)
		for i := range p {
			p[i] = model.SaveAll
			if rng.IntN(4) > 0 {
				p[i] = model.Save(rng.IntN(int(union) + 1))
			}
		}
		all[fmt.Sprintf("drawn %d", seed)] = p
	}
	return all
}

// Whatever blocks keep, every gradient has the bits that it has where they keep everything: of all families, latent
// attention in both forms, in full by fma in fp32, in full and with adapters on every projection by tc16 in bf16.
func TestPolicies(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		for _, c := range []struct {
			dtype    kernels.DType
			dot      kernels.DotMode
			adapters bool
		}{{kernels.F32, kernels.DotFMA, false}, {kernels.BF16, kernels.DotTC16, false},
			{kernels.BF16, kernels.DotTC16, true}} {
			def.Dot = c.dot
			onRankBy(t, def, func(r *parallel.Rank) error {
				dir := filepath.Join("testdata", family)
				m, err := learner(r, dir, c.dtype, c.adapters)
				if err != nil {
					return err
				}
				g := openGolden(t, dir)
				one, two := g.ids("ids.0"), g.ids("ids.1")
				want := gradientsBy(r, m, nil, one, two)
				for name, p := range policies(m) {
					if d := differs(gradientsBy(r, m, p, one, two), want); d != "" {
						t.Errorf("adapters %t, %s, %s kept: %s differs", c.adapters, c.dtype, name, d)
					}
				}
				if differs(gradientsBy(r, m, nil, two, one), want) == "" {
					t.Errorf("adapters %t, %s: another order of the sequences gives the same bits: the test cannot "+
						"fail", c.adapters, c.dtype)
				}
				return nil
			})
		}
	})
}

// Blocks that keep different results give the gradients of a model that keeps everything also where the inputs of those
// that compute again lie in the host's memory, whenever copies are carried out.
func TestPoliciesOffloaded(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "qwen3_moe", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	deep := []byte(strings.Replace(string(text), `"num_hidden_layers": 3`, `"num_hidden_layers": 9`, 1))
	ids := []int32{1, 2, 3, 4, 5, 6, 7}
	build := func(r *parallel.Rank, o model.Offload) (*model.Model, error) {
		m, err := model.Build(r.Dev, deep, model.Options{Offload: o})
		if err == nil {
			m.Initialise(1)
			m.TrainAll()
		}
		return m, err
	}
	for seed := range uint64(3) {
		dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1, DelayCopies: seed})
		if err != nil {
			t.Fatal(err)
		}
		err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
			m, err := build(r, model.Offload{})
			if err != nil {
				return err
			}
			want := gradientsBy(r, m, nil, ids)
			if m, err = build(r, model.Offload{Activations: true}); err != nil {
				return err
			}
			for name, p := range policies(m) {
				if d := differs(gradientsBy(r, m, p, ids), want); d != "" {
					t.Errorf("seed %d, %s kept: %s differs", seed, name, d)
				}
			}
			if rows := m.Hidden * len(ids) * kernels.F32.Size(); r.PinnedPeak() < 6*rows {
				t.Errorf("%d bytes of the host are taken", r.PinnedPeak())
			}
			return nil
		})
		if err := errors.Join(err, dev.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// Blocks that are halved give the gradients of whole ones, where each half is computed again by itself and a
// feed-forward that is frozen some rows at a time, in every family and form: in full, and with adapters on attention
// and recurrences, or on what follows them.
func TestPoliciesOfHalves(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		onRankBy(t, def, func(r *parallel.Rank) error {
			dir := filepath.Join("testdata", family)
			whole, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
			if err != nil {
				return err
			}
			g := openGolden(t, dir)
			one, two := g.ids("ids.0"), g.ids("ids.1")
			for name, c := range map[string]peft.Config{"full": {}, "on mixers": adaptersOn(whole, true),
				"on others": adaptersOn(whole, false)} {
				by := func(halves bool) (*model.Model, error) {
					return adaptedBy(r, dir, model.Options{Halves: halves}, c)
				}
				m, err := by(false)
				if err != nil {
					return err
				}
				want := gradientsBy(r, m, nil, one, two)
				if m, err = by(true); err != nil {
					return err
				}
				for _, rows := range []int{0, 1, 3, 8} {
					m.RowsAgain(rows)
					if d := differs(gradientsBy(r, m, m.Everywhere(0), one, two), want); d != "" {
						t.Errorf("%s, %d rows at a time: %s differs", name, rows, d)
					}
				}
			}
			return nil
		})
	})
}

// adaptersOn are adapters on all projections of attention and recurrences, or on all others.
func adaptersOn(m *model.Model, mixers bool) peft.Config {
	c := peft.Config{Rank: 3, Alpha: 6}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if _, mixes := sub.Layer.(model.Mixer); mixes == mixers {
				of := oneByOne(&model.Model{Blocks: []model.Block{{sub}}})
				for _, one := range of {
					c.Targets = append(c.Targets, one.Targets...)
					c.TargetParameters = append(c.TargetParameters, one.TargetParameters...)
				}
			}
		}
	}
	for _, list := range []*[]string{&c.Targets, &c.TargetParameters} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return c
}

// Adapters on one projection learn from what its neighbours do not need: nothing of that is left out.
func TestPoliciesOfOneAdapter(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		onRankBy(t, def, func(r *parallel.Rank) error {
			dir := filepath.Join("testdata", family)
			m, err := model.LoadFolder(r.Dev, dir, "", model.Options{})
			if err != nil {
				return err
			}
			g := openGolden(t, dir)
			ids := g.ids("ids.0")
			for _, c := range oneByOne(m) {
				m, err := adapted(r, dir, kernels.F32, c)
				if err != nil {
					return err
				}
				want, all := gradientsBy(r, m, nil, ids), policies(m)
				for _, name := range []string{"nothing", "all results"} {
					if d := differs(gradientsBy(r, m, all[name], ids), want); d != "" {
						t.Errorf("adapters on %v%v, %s kept: %s differs", c.Targets, c.TargetParameters, name, d)
					}
				}
			}
			return nil
		})
	})
}

// learner is a golden's model that learns in full, or by adapters on every projection none of which is 0.
func learner(r *parallel.Rank, dir string, dtype kernels.DType, adapters bool) (*model.Model, error) {
	m, err := model.LoadFolder(r.Dev, dir, "", model.Options{DType: dtype})
	if err != nil {
		return nil, err
	}
	if !adapters {
		m.TrainAll()
		return m, nil
	}
	all := peft.Config{Rank: 3, Alpha: 6}
	for _, c := range oneByOne(m) {
		all.Targets, all.TargetParameters = append(all.Targets, c.Targets...), append(all.TargetParameters,
			c.TargetParameters...)
	}
	return adapted(r, dir, dtype, all)
}

// oneByOne is adapters on each projection of a model alone.
func oneByOne(m *model.Model) (all []peft.Config) {
	seen := map[string]bool{}
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			for _, l := range sub.Layer.Linears() {
				for _, s := range l.Subs {
					if seen[s.Module] {
						continue
					}
					seen[s.Module] = true
					c := peft.Config{Rank: 3, Alpha: 6, Targets: []string{s.Module}}
					if l.Fused {
						c.Targets, c.TargetParameters = nil, c.Targets
					}
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// adapted is a golden's model with adapters none of which is 0.
func adapted(r *parallel.Rank, dir string, dtype kernels.DType, c peft.Config) (*model.Model, error) {
	return adaptedBy(r, dir, model.Options{DType: dtype}, c)
}

// adaptedBy is adapted by some options; with rank 0 it is trained in full.
func adaptedBy(r *parallel.Rank, dir string, o model.Options, c peft.Config) (*model.Model, error) {
	m, err := model.LoadFolder(r.Dev, dir, "", o)
	if err != nil {
		return nil, err
	}
	if c.Rank == 0 {
		m.TrainAll()
		return m, nil
	}
	if c, err = m.PEFT(c); err != nil {
		return nil, err
	}
	if err := m.AddLoRA(c); err != nil {
		return nil, err
	}
	m.TrainAll()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range m.Trained() {
		values := make([]float32, p.Elements())
		for i := range values {
			values[i] = float32(rng.NormFloat64()) / 8
		}
		mark := r.Stack.Mark()
		w := p.W
		w.Rows, w.Groups = w.Rows*w.Groups, 1
		r.Dev.Copy(w, parallel.Upload(r, values).Reshape(w.Rows, w.Cols))
		r.Stack.Release(mark)
	}
	return m, nil
}

// gradientsBy is every gradient of a micro-batch, and its loss, by name.
func gradientsBy(r *parallel.Rank, m *model.Model, p model.Policy, seqs ...[]int32) map[string][]float32 {
	out := map[string][]float32{"loss": {float32(lossAndGradientsBy(r, m, p, seqs...))}}
	for _, p := range m.Trained() {
		out[p.Name] = model.ReadValues(r.Dev, p.Grad)
		r.Dev.Zero(p.Grad)
	}
	return out
}

// differs is the name of something that is not equal on every bit; "": all is.
func differs(a, b map[string][]float32) string {
	for name, x := range a {
		if !slices.EqualFunc(x, b[name], func(x, y float32) bool {
			return math.Float32bits(x) == math.Float32bits(y)
		}) {
			return name
		}
	}
	return ""
}
