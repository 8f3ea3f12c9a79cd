package optim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Settings of the objectives of reinforcement learning. A zero stands for the objective's own value, see Defaults.
type Settings struct {
	ClipLow, ClipHigh float64 // a ratio counts from 1-ClipLow to 1+ClipHigh
	DualClip          float64 // bound on the ratio of rows with a negative advantage; 0: none
	ImportanceCap     float64 // with Rows.Old: rows are weighed by exp(old - rollout), at most this; 0: not weighed
	KLCoef            float64 // weight of the KL to Rows.Reference; 0: none
	KLEstimator       string  // "k1", "k2" or "k3"
	Advantage         string  // see GroupAdvantages
	Aggregate         string  // see Aggregate
}

// defaults are the objectives by name with the settings of their papers.
var defaults = map[string]Settings{
	"pg":      {Advantage: "group_mean", Aggregate: "token"},
	"ppo":     {Advantage: "group_norm", Aggregate: "token", ClipLow: 0.2, ClipHigh: 0.2},
	"grpo":    {Advantage: "group_norm", Aggregate: "sequence", ClipLow: 0.2, ClipHigh: 0.2},
	"dr_grpo": {Advantage: "group_mean", Aggregate: "constant", ClipLow: 0.2, ClipHigh: 0.2},
	"dapo":    {Advantage: "group_norm", Aggregate: "token", ClipLow: 0.2, ClipHigh: 0.28},
}

// Complete fills in what is zero with the objective's own values.
func (s Settings) Complete(objective string) (Settings, error) {
	d, ok := defaults[objective]
	if !ok {
		return s, fmt.Errorf("objective %q: want one of %s", objective, strings.Join(slices.Sorted(maps.Keys(defaults)), ", "))
	}
	for _, f := range []struct {
		value *float64
		own   float64
	}{{&s.ClipLow, d.ClipLow}, {&s.ClipHigh, d.ClipHigh}} {
		if *f.value == 0 {
			*f.value = f.own
		}
	}
	if s.Advantage == "" {
		s.Advantage = d.Advantage
	}
	if s.Aggregate == "" {
		s.Aggregate = d.Aggregate
	}
	if s.KLEstimator == "" {
		s.KLEstimator = "k3"
	}
	return s, nil
}

// New makes an objective of reinforcement learning by its name and complete settings.
func New(objective string, s Settings) (Objective, error) {
	switch objective {
	case "pg":
		return PolicyGradient(s), nil
	case "ppo", "grpo", "dr_grpo", "dapo":
		return ClippedSurrogate(s), nil
	}
	return nil, fmt.Errorf("objective %q: want one of %s", objective, strings.Join(slices.Sorted(maps.Keys(defaults)), ", "))
}
