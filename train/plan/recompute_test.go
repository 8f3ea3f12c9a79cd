package plan

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// The plan of what activations take is what the stacks of a real step take, to the byte, whatever blocks keep, of the
// device and, where it has the inputs of blocks, of the host.
func TestPlanOfPolicies(t *testing.T) {
	for _, offloaded := range []bool{false, true} {
		t.Run(fmt.Sprintf("offloaded=%t", offloaded), func(t *testing.T) { planOfPolicies(t, offloaded) })
	}
}

func planOfPolicies(t *testing.T, offloaded bool) {
	s, err := testshape.Parse([]string{"run.packs=8", "run.micro_batch=8", "model.config.num_hidden_layers=6",
		"lora.rank=4", "data.pack_rows=256", fmt.Sprintf("offload.activations=%t", offloaded)})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		p, err := New(dev, s)
		if err != nil {
			return err
		}
		m, _, err := setup.OpenTrained(dev, s)
		if err != nil {
			return err
		}
		o, err := setup.TrainerOptions(s, 3, nil)
		if err != nil {
			return err
		}
		tr := trainer.New(r, m, o)
		for _, keep := range []model.Policy{nil, m.Everywhere(0), m.Everywhere(model.SaveAttention),
			{0, model.SaveAll, 0, model.SaveExperts, 0, 0}, {model.SaveAll, 0, model.SaveGateUp, 0, 0, 0}} {
			tr.Keep = keep
			want := p.step(keep) - p.static[0].Device()
			host := p.Rank.PinnedPeak()
			r.ClearStacks(0)
			Reserve(r, p.Rank)
			tr.Step(1, trainer.Supervised(slices.Repeat([][]data.Sample{tr.FullPack(s.Data.PackRows)}, s.Run.Packs)))
			if got := r.Stack.Peak() + r.PinnedPeak(); got != want || r.PinnedPeak() != host {
				t.Errorf("%v kept: %d bytes, of them %d of the host, planned %d and %d", keep, got, r.PinnedPeak(),
					want, host)
			}
			away := 0 // inputs of blocks that are computed again, but for the last three of them
			for _, save := range keep {
				if offloaded && save != model.SaveAll {
					away++
				}
			}
			if n := max(away-3, 0) * kernels.ArenaBytes(m.DType, 8*256, m.Hidden); host != n {
				t.Errorf("%v kept: %d bytes of the host, want %d", keep, host, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The room that inputs of blocks leave on a card when they go to the host is used: run.recompute = "auto" keeps more
// there, within the same memory.
func TestChooseAutoed(t *testing.T) {
	choose := func(have int, more ...string) (*Plan, Memory) {
		s, err := tiny(more...)("device.kind=cuda", "model.config.num_hidden_layers=7", "data.eval_samples=0",
			"run.packs=4", "run.micro_batch=4")
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(meta.New(setup.Definition(s), kernels.SpareGPU), s)
		if err != nil {
			t.Fatal(err)
		}
		n, err := p.Choose(have)
		if err != nil {
			t.Fatal(err)
		}
		return p, n
	}
	kept := func(p *Plan) (results int) {
		for _, save := range p.Keep {
			results += bits.OnesCount(uint(save))
		}
		return results
	}
	_, full := choose(0, "run.recompute=full")
	have := full.Total()*32/31 + 1
	p, n := choose(have)
	q, m := choose(have, "offload.activations=true")
	if p.Keep == nil || q.Keep == nil || kept(q) <= kept(p) {
		t.Errorf("%v is kept with inputs of blocks on the host, %v without", q.Keep, p.Keep)
	}
	if m.Total() > have || m.HostInputs == 0 || n.Host != 0 {
		t.Errorf("it takes %d of %d bytes and %d of the host, without %d", m.Total(), have, m.Host, n.Host)
	}
}

// One card holds 262,144 tokens of four layers of GLM-5.2, where attention and experts are computed again by
// themselves; else it would take 1.6 times as much.
func TestPlanOfHalves(t *testing.T) {
	card, err := configs.LoadMachine("1xH200")
	if err != nil {
		t.Fatal(err)
	}
	plan := func(recompute string) *OnMesh {
		s, err := configs.Load("../../configs/layers.toml", []string{"model.catalogue=GLM-5.2", "model.weights=int4",
			"model.config.num_hidden_layers=4", "model.config.max_position_embeddings=262144", "run.packs=1",
			"data.pack_rows=262144", "run.micro_batch=1", "offload.activations=true", "data.eval_samples=0",
			"run.verify_tokens=0", "run.recompute=" + recompute})
		if err != nil {
			t.Fatal(err)
		}
		m, err := (&OnMachine{Machine: card}).plan(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	full, halves := plan("full"), plan("halves")
	if full.Fits() || !halves.Fits() || float64(full.Bytes) < 1.6*float64(halves.Bytes) ||
		halves.Step.Seconds >= full.Step.Seconds {
		t.Errorf("halves take %.1f of %.1f GiB and %.2f s, blocks %.1f and %.2f", float64(halves.Bytes)/gibibyte,
			float64(halves.Available)/gibibyte, halves.Step.Seconds, float64(full.Bytes)/gibibyte, full.Step.Seconds)
	}
}
