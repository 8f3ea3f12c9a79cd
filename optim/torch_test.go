package optim

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// torchGolden is testdata/objectives.json, which .ci/torch/objectives.py writes.
type torchGolden struct {
	Torch   string
	Lengths []int
	Longest int
	Rewards []float64
	Group   int
	Samples []struct {
		Rows  struct{ Mask, LogProb, Old, Rollout, Reference []float32 }
		Cases []torchCase
	}
}

type torchCase struct {
	Objective string
	Settings  map[string]any // by the keys of a shape
	Loss      float64
	Clipped   int
	Gradient  []float64
	Advantage []float64 // of each sequence
}

// settings are the case's, resolved.
func (c torchCase) settings(t *testing.T) Settings {
	var s Settings
	for _, k := range s.keys() {
		switch v := c.Settings[k.name].(type) {
		case string:
			*k.text = v
		case float64:
			*k.number = v
		}
	}
	s, err := Resolve(c.Objective, s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Losses, gradients, counts of clipped rows, advantages and aggregation are those of torch.
func TestTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/objectives.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden torchGolden
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, sample := range golden.Samples {
		rows := Rows{LogProb: sample.Rows.LogProb, Old: sample.Rows.Old, Rollout: sample.Rows.Rollout,
			Reference: sample.Rows.Reference, Sequences: []int{0}}
		var targets []int
		for _, n := range golden.Lengths {
			from, learned := len(rows.Targets), 0
			for _, m := range sample.Rows.Mask[from : from+n] {
				rows.Targets = append(rows.Targets, int32(m)-1)
				learned += int(m)
			}
			targets, rows.Sequences = append(targets, learned), append(rows.Sequences, from+n)
		}
		for _, c := range sample.Cases {
			s := c.settings(t)
			seen[c.Objective] = true
			weights, scale := Aggregate(s.Aggregate, targets, golden.Longest)
			rows.Weight = spread(rows, weights)
			rows.Advantage = nil
			if c.Advantage != nil {
				advantages := GroupAdvantages(s.Advantage, golden.Rewards, golden.Group)
				for i, a := range advantages {
					if math.Abs(float64(a)-c.Advantage[i]) > 1e-6 {
						t.Errorf("%s %v: advantage %d is %g, torch has %g", c.Objective, c.Settings, i, a,
							c.Advantage[i])
					}
				}
				rows.Advantage = spread(rows, advantages)
			}
			o, err := New(c.Objective, s)
			if err != nil {
				t.Fatal(err)
			}
			c.compare(t, o, rows, scale)
		}
	}
	for _, k := range objectives {
		if !seen[k.name] && !slices.Contains([]string{"sft", "custom"}, k.name) {
			t.Errorf("no case for %s", k.name)
		}
	}
}

func (c torchCase) compare(t *testing.T, o Objective, rows Rows, scale float64) {
	t.Helper()
	if m := measure(o, rows); math.Abs(scale*m.Loss-c.Loss) > 2e-6*(1+math.Abs(c.Loss)) || m.Clipped != c.Clipped {
		t.Errorf("%s %v: loss %g with %d clipped, torch has %g with %d", c.Objective, c.Settings, scale*m.Loss,
			m.Clipped, c.Loss, c.Clipped)
	}
	for i, d := range derivative(o, rows) {
		if d := scale * float64(d); math.Abs(d-c.Gradient[i]) > 2e-6*math.Abs(c.Gradient[i])+1e-8 {
			t.Errorf("%s %v: row %d: derivative %g, torch has %g", c.Objective, c.Settings, i, d, c.Gradient[i])
		}
	}
}

// spread gives every row the value of its sequence.
func spread(rows Rows, values []float32) (out []float32) {
	for s, v := range values {
		out = append(out, slices.Repeat([]float32{v}, rows.Sequences[s+1]-rows.Sequences[s])...)
	}
	return out
}
