package model_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"lockstep/model"
)

// What we write reads back, and has the fields that PEFT cannot do without.
func TestAdapterConfig(t *testing.T) {
	for _, c := range []model.LoRAConfig{
		{Rank: 4, Alpha: 8, Targets: []string{"q_proj", "v_proj"}},
		{Rank: 1, Alpha: 0.5, TargetParameters: []string{"mlp.experts.gate_up_proj"}, RankStabilised: true, Targets: []string{}},
		{Rank: 2, Alpha: 2, Pattern: `.*\.q_proj`},
	} {
		text, err := c.JSON("base")
		if err != nil {
			t.Fatal(err)
		}
		got, err := model.ParseAdapterConfig(text)
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%+v reads back as %+v (%v)", c, got, err)
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"rank_pattern", "alpha_pattern"} {
			if _, ok := fields[name].(map[string]any); !ok {
				t.Errorf("%s is %v, PEFT wants an object", name, fields[name])
			}
		}
	}
}
