package peft

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What we write reads back, and has the fields that PEFT cannot do without.
func TestAdapterConfig(t *testing.T) {
	for _, c := range []Config{
		{Rank: 4, Alpha: 8, Targets: []string{"q_proj", "v_proj"}},
		{Rank: 1, Alpha: 0.5, TargetParameters: []string{"mlp.experts.gate_up_proj"}, RankStabilised: true,
			Targets: []string{}},
		{Rank: 2, Alpha: 2, Pattern: `.*\.q_proj`},
		{Rank: 2, Alpha: 2, Targets: []string{"q_proj"}, RankPattern: []ModuleValue{{"b.q_proj", 3}, {"a", 1}},
			AlphaPattern: []ModuleValue{{"z", 0.5}, {"y", 2}}, Exclude: []string{"x"}, Layers: []int{0, 2},
			LayersPattern: []string{"layers"}, ModulesToSave: []string{"lm_head"}, Init: PiSSA},
		{Rank: 2, Alpha: 2, Targets: []string{"q_proj"}, ExcludePattern: ".*x", Init: OLoRA, Dropout: 0.1},
	} {
		text, err := c.JSON("base")
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(text)
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%+v reads back as %+v (%v)", c, got, err)
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]any{
			"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "bias": "none",
			"lora_dropout": c.Dropout, "r": float64(c.Rank), "lora_alpha": c.Alpha, "use_rslora": c.RankStabilised,
			"use_dora": false, "fan_in_fan_out": false, "init_lora_weights": initOf(c), "inference_mode": true,
			"modules_to_save": listOf(c.ModulesToSave), "target_modules": targetsOf(c),
			"target_parameters": listOf(c.TargetParameters),
			// PEFT reads the keys of these: null will not do.
			"rank_pattern": objectOf(c.RankPattern), "alpha_pattern": objectOf(c.AlphaPattern),
		} {
			if got, ok := fields[name]; !ok || !reflect.DeepEqual(got, want) {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
}

// Without modules target_modules is an empty list: PEFT takes null for its own choice.
func TestAdapterConfigWithoutModules(t *testing.T) {
	text, err := Config{Rank: 1, Alpha: 1, TargetParameters: []string{"mlp.experts.down_proj"}}.JSON("base")
	if err != nil || !strings.Contains(string(text), `"target_modules": []`) {
		t.Errorf("%s (%v)", text, err)
	}
}

// targetsOf is target_modules as JSON has it: a pattern, or a list that may be empty but never null.
func targetsOf(c Config) any {
	if c.Pattern != "" {
		return c.Pattern
	}
	return append([]any{}, slices.Collect(anys(c.Targets))...)
}

func initOf(c Config) any {
	if c.Init != "" {
		return c.Init
	}
	return true
}

func objectOf(values []ModuleValue) any {
	object := map[string]any{}
	for _, v := range values {
		object[v.Pattern] = v.Value
	}
	return object
}

func listOf(list []string) any {
	if list == nil {
		return nil
	}
	return slices.Collect(anys(list))
}

func anys(list []string) iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, s := range list {
			if !yield(s) {
				return
			}
		}
	}
}

// What would change the arithmetic is refused by its name, each by itself.
func TestAdapterConfigRefuses(t *testing.T) {
	for field, want := range map[string]string{
		`"peft_type": "IA3"`:                      "peft_type",
		`"bias": "all"`:                           "bias all",
		`"fan_in_fan_out": true`:                  "fan_in_fan_out",
		`"use_dora": true`:                        "use_dora",
		`"rank_pattern": {"q_proj": 0}`:           "rank_pattern",
		`"rank_pattern": {"q_proj": 2.5}`:         "rank_pattern",
		`"rank_pattern": {"q_proj": "2"}`:         "rank_pattern",
		`"rank_pattern": [2]`:                     "rank_pattern",
		`"alpha_pattern": {"q_proj": null}`:       "alpha_pattern",
		`"layers_to_transform": {"0": 1}`:         "layers_to_transform",
		`"layers_pattern": 3`:                     "layers_pattern",
		`"exclude_modules": 3`:                    "exclude_modules",
		`"layer_replication": [[0, 2]]`:           "layer_replication",
		`"lora_bias": true`:                       "lora_bias",
		`"use_qalora": true`:                      "use_qalora",
		`"trainable_token_indices": [1]`:          "trainable_token_indices",
		`"r": 4611686018427387904`:                "r is 4611686018427387904",
		`"r": 0`:                                  "r is 0",
		`"alora_invocation_tokens": [1, 2]`:       "alora_invocation_tokens",
		`"init_lora_weights": "pissa_niter_4"`:    "pissa_niter_4",
		`"init_lora_weights": "loftq"`:            `init_lora_weights "loftq"`,
		`"init_lora_weights": "corda"`:            `init_lora_weights "corda"`,
		`"init_lora_weights": "lora_ga"`:          `init_lora_weights "lora_ga"`,
		`"target_modules": {"q_proj": true}`:      "target_modules",
		`"rank_pattern": {}, "alpha_pattern": {}`: "",
		`"init_lora_weights": "gaussian"`:         "",
		`"init_lora_weights": false`:              "",
		`"init_lora_weights": "pissa"`:            "",
		`"init_lora_weights": "olora"`:            "",
		`"init_lora_weights": "eva"`:              "",
		`"init_lora_weights": "orthogonal"`:       "",
		`"modules_to_save": ["lm_head"]`:          "",
		`"rank_pattern": {"q_proj": 2}`:           "",
		`"layers_to_transform": 3`:                "",
		`"exclude_modules": "a|b"`:                "",
		`"alora_invocation_tokens": null`:         "",
	} {
		text := `{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], ` + field + `}`
		c, err := Parse([]byte(text))
		switch {
		case want == "" && (err != nil || c.Rank != 4 || c.Alpha != 8):
			t.Errorf("%s: %+v (%v)", field, c, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: error %v, want one line with %q", field, err, want)
		}
	}
}

func TestRankOfAdapter(t *testing.T) {
	for _, r := range []int{0, -1, 1 << 17, 1_000_000_000, 1 << 62} {
		text := fmt.Sprintf(`{"peft_type": "LORA", "r": %d, "lora_alpha": 8, "target_modules": ["q_proj"]}`, r)
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "want 1 to 65536") {
			t.Errorf("r = %d: %v", r, err)
		}
	}
}
