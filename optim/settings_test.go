package optim

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

// Defaults of each objective, as in the table of Settings.
func TestDefaults(t *testing.T) {
	for name, want := range map[string]Settings{
		"sft":             {Aggregate: "token"},
		"policy_gradient": {Aggregate: "token", Advantage: "group_mean"},
		"ppo": {Aggregate: "token", Advantage: "group_norm", ClipBounds: "epsilon", ClipLow: 0.2,
			ClipHigh: 0.2},
		"grpo": {Aggregate: "sequence", Advantage: "group_norm", ClipBounds: "epsilon", ClipLow: 0.2,
			ClipHigh: 0.2},
		"dr_grpo": {Aggregate: "constant", Advantage: "group_mean", ClipBounds: "epsilon", ClipLow: 0.2,
			ClipHigh: 0.2},
		"dapo": {Aggregate: "token", Advantage: "group_norm", ClipBounds: "epsilon", ClipLow: 0.2,
			ClipHigh: 0.28},
		"gspo": {Aggregate: "sequence", Advantage: "group_norm", ClipBounds: "epsilon", ClipLow: 3e-4,
			ClipHigh: 4e-4, GSPOGradient: "token"},
		"cispo": {Aggregate: "token", Advantage: "group_norm", ClipBounds: "epsilon", ClipLow: 1,
			ClipHigh: 3},
		"dro":    {Aggregate: "token", Advantage: "group_mean", DROBeta: 0.05, DROQuadratic: "all"},
		"dpo":    {Aggregate: "pair", DPOBeta: 0.1, DPOLoss: "sigmoid"},
		"custom": {Aggregate: "token", Advantage: "group_norm"},
	} {
		got, err := Resolve(name, Settings{})
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
		if again, err := Resolve(name, got); err != nil || again != got {
			t.Errorf("%s: resolved twice %+v, %v", name, again, err)
		}
		if o, err := New(name, Settings{}); err != nil || o == nil {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}

// Given settings are kept, and determine the defaults of others.
func TestResolve(t *testing.T) {
	for _, c := range []struct{ give, want Settings }{
		{Settings{ClipBounds: "absolute"}, Settings{ClipBounds: "absolute", ClipLow: 0.8, ClipHigh: 1.2}},
		{Settings{ClipBounds: "absolute", ClipHigh: 3}, Settings{ClipBounds: "absolute", ClipLow: 0.8, ClipHigh: 3}},
		{Settings{ImportanceCap: 2}, Settings{ImportanceCap: 2, ImportanceLevel: "token", ClipBounds: "epsilon",
			ClipLow: 0.2, ClipHigh: 0.2}},
		{Settings{KLCoef: 0.1, Aggregate: "sum"}, Settings{KLCoef: 0.1, KLEstimator: "k3", Aggregate: "sum",
			ClipBounds: "epsilon", ClipLow: 0.2, ClipHigh: 0.2}},
	} {
		got, err := Resolve("ppo", c.give)
		c.want.Advantage = "group_norm"
		if c.want.Aggregate == "" {
			c.want.Aggregate = "token"
		}
		if err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v, want %+v", c.give, got, err, c.want)
		}
		if again, err := Resolve("ppo", got); err != nil || again != got {
			t.Errorf("%+v: resolved twice %+v, %v", c.give, again, err)
		}
	}
}

func TestSettingsErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Settings
		want string
	}{
		{"gpro", Settings{}, `objective is "gpro", want "sft", "policy_gradient", "ppo", "grpo", "dr_grpo", "dapo", ` +
			`"gspo", "cispo", "dro", "dpo" or "custom"`},
		{"sft", Settings{ClipLow: 0.2}, `clip_low does nothing for objective "sft": remove it`},
		{"dro", Settings{DualClip: 3}, `dual_clip does nothing for objective "dro": remove it`},
		{"ppo", Settings{Aggregate: "mean"},
			`aggregate is "mean", want "token", "sequence", "constant", "sum" or "pair"`},
		{"ppo", Settings{Aggregate: "pair"},
			`aggregate is "pair", want "token", "sequence", "constant" or "sum" for objective "ppo"`},
		{"dpo", Settings{Aggregate: "token"}, `aggregate is "token", want "pair" or "sum" for objective "dpo"`},
		{"ppo", Settings{ClipLow: 1.5}, `clip_low is 1.5, want more than 0 and at most 1`},
		{"ppo", Settings{ClipLow: math.NaN()}, `clip_low is NaN, want more than 0 and at most 1`},
		{"ppo", Settings{ClipHigh: -1}, `clip_high is -1, want more than 0`},
		{"ppo", Settings{ClipBounds: "absolute", ClipHigh: 0.2},
			`clip_high is 0.2, want at least 1 with clip_bounds = "absolute"`},
		{"ppo", Settings{DualClip: 0.5}, `dual_clip is 0.5, want more than 1`},
		{"ppo", Settings{BandHigh: 5}, `band_low is missing: band_high needs both`},
		{"ppo", Settings{BandLow: 0.5}, `band_high is missing: band_low needs both`},
		{"ppo", Settings{ImportanceLevel: "token"},
			`importance_level does nothing without importance_cap or band_high: remove it`},
		{"ppo", Settings{KLEstimator: "k1"}, `kl_estimator does nothing without kl_coef: remove it`},
		{"dpo", Settings{DPOLoss: "ipo", LabelSmoothing: 0.1},
			`label_smoothing does nothing with dpo_loss = "ipo": remove it`},
		{"dpo", Settings{DPOLoss: "ipo_sum", LabelSmoothing: 0.1},
			`label_smoothing does nothing with dpo_loss = "ipo_sum": remove it`},
		{"dpo", Settings{LabelSmoothing: 0.6}, `label_smoothing is 0.6, want more than 0 and at most 0.5`},
	} {
		o, err := New(c.name, c.s)
		if err == nil || err.Error() != c.want || o != nil {
			t.Errorf("%s %+v: %v, %v, want %s", c.name, c.s, o, err, c.want)
		}
	}
}

// Every field of Settings has its key, and every key its field.
func TestKeys(t *testing.T) {
	var s Settings
	keys := s.keys()
	if n := reflect.TypeFor[Settings]().NumField(); n != len(keys) {
		t.Errorf("%d keys of %d fields", len(keys), n)
	}
	for _, k := range keys {
		field, ok := reflect.TypeFor[Settings]().FieldByNameFunc(func(f string) bool {
			return strings.EqualFold(f, strings.ReplaceAll(k.name, "_", ""))
		})
		switch at := reflect.ValueOf(&s).Elem(); {
		case !ok:
			t.Errorf("%s: no such field", k.name)
		case k.text != nil && at.FieldByIndex(field.Index).Addr().Interface() != k.text || k.number != nil &&
			at.FieldByIndex(field.Index).Addr().Interface() != k.number:
			t.Errorf("%s is not field %s", k.name, field.Name)
		}
	}
}
