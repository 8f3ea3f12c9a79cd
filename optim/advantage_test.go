package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestGroupAdvantages(t *testing.T) {
	rewards := []float64{1, 0, 0, 3, 0.1, 0.1, 0.1, 0.1}
	all := math.Sqrt(6.0 / 7) // of 0, -1, -1, 2 and four 0
	for kind, want := range map[string][]float64{
		"group_norm":    {0, -1 / math.Sqrt2, -1 / math.Sqrt2, math.Sqrt2, 0, 0, 0, 0},
		"group_mean":    {0, -1, -1, 2, 0, 0, 0, 0},
		"leave_one_out": {0, -4.0 / 3, -4.0 / 3, 8.0 / 3, 0, 0, 0, 0},
		"batch_norm":    {0, -1 / all, -1 / all, 2 / all, 0, 0, 0, 0},
		"none":          rewards,
	} {
		for i, a := range GroupAdvantages(kind, rewards, 4) {
			if math.Abs(float64(a)-want[i]) > 3e-4 || want[i] == 0 && a != 0 {
				t.Errorf("%s: advantage %d is %g, want %g", kind, i, a, want[i])
			}
		}
	}
	// Rewards are equal when all of them are: not the first and the last, not two neighbours.
	for _, rewards := range [][]float64{{1, 0, 1}, {0, 0, 1}, {0, 1, 1}} {
		for i, a := range GroupAdvantages("group_mean", rewards, 3) {
			mean := (rewards[0] + rewards[1] + rewards[2]) / 3
			if math.Abs(float64(a)-(rewards[i]-mean)) > 1e-6 {
				t.Errorf("rewards %v: advantage %d is %g", rewards, i, a)
			}
		}
	}
	if got := GroupAdvantages("leave_one_out", []float64{0.3, 0.7}, 1); !slices.Equal(got, []float32{0, 0}) {
		t.Errorf("groups of one: %v, want zeros", got)
	}
}

// Equal rewards whose mean is not one of them give exactly 0 all the same.
func TestEqualRewards(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	off := 0
	for range 100 {
		group := slices.Repeat([]float64{rng.NormFloat64()}, 7)
		sum := 0.0
		for _, r := range group {
			sum += r
		}
		if sum/7 != group[0] {
			off++
		}
		for _, kind := range []string{"group_norm", "group_mean", "leave_one_out", "batch_norm"} {
			for _, a := range GroupAdvantages(kind, append([]float64{1, 2, 3, 4, 5, 6, 7}, group...), 7)[7:] {
				if a != 0 {
					t.Fatalf("%s: seven rewards of %g give %g", kind, group[0], a)
				}
			}
		}
	}
	if off == 0 {
		t.Error("no mean was off by a bit: the test shows nothing")
	}
}

func TestAggregate(t *testing.T) {
	third := float32(1 / 3.0)
	for _, c := range []struct {
		kind    string
		targets []int
		want    []float32
		scale   float64
	}{
		{"token", []int{2, 0, 3, 5}, []float32{1, 0, 1, 1}, 0.1},
		{"sequence", []int{2, 0, 3, 5}, []float32{0.5, 0, third, 0.2}, 1 / 3.0},
		{"constant", []int{2, 0, 3, 5}, []float32{1, 0, 1, 1}, 1 / 24.0},
		{"sum", []int{2, 0, 3, 5}, []float32{1, 0, 1, 1}, 1},
		{"pair", []int{2, 4, 3, 5, 1, 0}, []float32{1, 1, 1, 1, 1, 0}, 1 / 3.0},
		{"token", []int{0, 0}, []float32{0, 0}, 1},
	} {
		got, scale := Aggregate(c.kind, c.targets, 8)
		if !slices.Equal(got, c.want) || scale != c.scale {
			t.Errorf("%s: %v times %v, want %v times %v", c.kind, got, scale, c.want, c.scale)
		}
	}
}

func TestAggregatePanics(t *testing.T) {
	for name, call := range map[string]func(){
		"kind":      func() { Aggregate("mean", []int{1}, 1) },
		"advantage": func() { GroupAdvantages("norm", []float64{1, 2}, 2) },
		"groups":    func() { GroupAdvantages("none", []float64{1, 2, 3}, 2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call()
		}()
	}
}
