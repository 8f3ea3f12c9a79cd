package bench

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/train/setup"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// Every objective gives the same gradients in each way, on and off the policy, or the benchmark ends with an error.
func TestBenchRL(t *testing.T) {
	for _, set := range [][]string{{"run.micro_batch=2"}, {"run.micro_batch=1", "lora.rank=4", "model.dtype=bf16"}} {
		s, err := testshape.Parse(set)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		o := RLOptions{Answers: 8, Prompt: Span{3, 9}, New: Span{4, 20}, Seed: 1, Updates: 1, Out: &text}
		if err := RL(context.Background(), s, o); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")[3:]
		for i, name := range optim.Names()[:len(optim.Names())-1] {
			numbers := map[string]int{"sft": 3, "dpo": 3}[name]
			if numbers == 0 {
				numbers = 5
			}
			words := strings.Fields(lines[i])
			dashes := strings.Count(lines[i], "-")
			if len(words) != 6 || words[5] != name || dashes != 5-numbers || strings.Contains(lines[i], " 0.0000") {
				t.Errorf("%s: %q", name, lines[i])
			}
		}
	}
}

// crooked is an objective whose derivatives are others the second time.
type crooked struct {
	optim.Objective
	calls *int
}

func (c crooked) Reach() optim.Reach { return optim.ReachSequence }

func (c crooked) Derivative(d []float32, rows optim.Rows) {
	c.Objective.Derivative(d, rows)
	if *c.calls++; *c.calls == 2 {
		for i := range d {
			d[i] *= 1 + 1.0/(1<<20)
		}
	}
}

func TestBenchRLCatches(t *testing.T) {
	s, err := testshape.Parse([]string{"run.micro_batch=4"})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, _, err := setup.OpenTrained(dev, s)
		if err != nil {
			return err
		}
		b, err := newRLBench(r, m, s, nil, RLOptions{Answers: 8, Prompt: Span{3, 9}, New: Span{4, 20}, Seed: 1})
		if err != nil {
			return err
		}
		settings, err := optim.Resolve("grpo", optim.Settings{})
		if err != nil {
			return err
		}
		objective, err := optim.New("grpo", settings)
		if err != nil {
			return err
		}
		if err := b.agree(crooked{objective, new(int)}, b.batch(settings), []rlWay{fused, twice}); err == nil ||
			!strings.Contains(err.Error(), "gradient of") {
			t.Errorf("derivatives that differ in the last bits: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestBenchRLBad(t *testing.T) {
	s, err := testshape.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]RLOptions{
		"even":         {Answers: 3, Prompt: Span{3, 9}, New: Span{4, 20}},
		"65 positions": {Answers: 2, Prompt: Span{3, 9}, New: Span{4, 56}}, // a pair does not fit in a pack of 128
		"129 position": {Answers: 2, Prompt: Span{3, 9}, New: Span{4, 120}},
		`"gripo"`:      {Answers: 2, Prompt: Span{3, 9}, New: Span{4, 20}, Objectives: []string{"gripo"}},
		`"custom"`:     {Answers: 2, Prompt: Span{3, 9}, New: Span{4, 20}, Objectives: []string{"grpo", "custom"}},
	} {
		if err := RL(context.Background(), s, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// Units stay together and in order, and every row has its sequence's weight.
func TestPack(t *testing.T) {
	var batch []trainer.Sample
	for i, n := range []int{40, 30, 20, 60, 10, 10, 50, 5} {
		le := trainer.Sample{Sample: data.Sample{IDs: make([]int32, n), Targets: make([]int32, n)}}
		le.IDs[0] = int32(i)
		batch = append(batch, le)
	}
	for unit, want := range map[int][][]int32{1: {{0, 1, 2, 4}, {3, 5, 7}, {6}}, 2: {{0, 1, 4, 5}, {2, 3}, {6, 7}}} {
		packed := trainer.Pack(batch, unit, "sequence", 0, 100)
		packs := packed.Packs
		if len(packs) != len(want) {
			t.Fatalf("units of %d: %d packs", unit, len(packs))
		}
		for i, p := range packs {
			for j, le := range p {
				n := len(le.IDs)
				if le.IDs[0] != want[i][j] || len(p) != len(want[i]) || len(le.Weight) != n ||
					le.Weight[n-1] != float32(1/float64(n)) || packed.Scale != 1.0/8 {
					t.Errorf("units of %d: pack %d has sample %d of weights %v, want %v", unit, i, le.IDs[0], le.Weight,
						want[i])
				}
			}
		}
	}
}
