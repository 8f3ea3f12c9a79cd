package plan

import (
	"slices"
	"testing"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// The plan of what activations take is what the stack of a real step takes, to the byte, whatever blocks keep.
func TestPlanOfPolicies(t *testing.T) {
	s, err := testshape.Parse([]string{"run.packs=8", "run.micro_batch=8", "model.config.num_hidden_layers=4",
		"lora.rank=4", "data.pack_rows=256"})
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
			{0, model.SaveAll, 0, model.SaveExperts}, {model.SaveAll, 0, model.SaveGateUp, 0}} {
			tr.Keep = keep
			want := p.step(keep) - p.static[0].Device()
			r.Stack = kernels.NewArena(dev)
			Reserve(r, p.Rank)
			tr.Step(1, trainer.Supervised(slices.Repeat([][]data.Sample{tr.FullPack(s.Data.PackRows)}, s.Run.Packs)))
			if got := r.Stack.Peak(); got != want {
				t.Errorf("%v kept: %d bytes, planned %d", keep, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
