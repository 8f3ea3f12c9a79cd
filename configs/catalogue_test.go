package configs

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// published is a shape on a model of the catalogue.
const published = `[model]
catalogue = "%s"
tokenizer = "bytes"
[data]
task = "countdown"
[run]
steps = 1
`

func parsePublished(t *testing.T, name string, set ...string) *Shape {
	t.Helper()
	s, err := Parse("s.toml", fmt.Appendf(nil, published, name), set)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every entry is a shape that prints as one without the catalogue, and reads back.
func TestPublishedShapes(t *testing.T) {
	for _, name := range Published() {
		s := parsePublished(t, name)
		if s.Model.Catalogue != "" || s.Model.Family == "" || s.Model.Config == nil {
			t.Errorf("%s: resolved to %+v", name, s.Model)
		}
		again, err := Parse("s.toml", s.TOML(), nil)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%s: printed\n%s\nreads back as %+v (%v)", name, s.TOML(), again, err)
		}
	}
}

func TestPublishedOverrides(t *testing.T) {
	c := parsePublished(t, "Qwen3-30B-A3B", "model.config.num_hidden_layers=2", "model.config.new=true").Model
	if c.Family != "qwen3_moe" || c.Config["num_hidden_layers"] != int64(2) || c.Config["num_experts"] != int64(128) ||
		c.Config["rms_norm_eps"] != 1e-6 || c.Config["new"] != true {
		t.Errorf("resolved to %+v", c)
	}
	if other := parsePublished(t, "Qwen3-30B-A3B").Model.Config; other["num_hidden_layers"] != int64(48) {
		t.Error("the catalogue was changed by a shape")
	}
	text := parsePublished(t, "Kimi-K2.5",
		"model.config.text_config.rope_scaling.factor=2").Model.Config["text_config"].(map[string]any)
	if rope := text["rope_scaling"].(map[string]any); rope["factor"] != int64(2) || rope["beta_fast"] != int64(32) {
		t.Errorf("rope_scaling %v", rope)
	}
}

// With fewer layers, what a config says of each layer is about those that are left.
func TestFewerLayers(t *testing.T) {
	for _, c := range []struct {
		name, field string
		layers      int
		want        any
		set         []string
	}{
		{"gpt-oss-20b", "layer_types", 3, []any{"sliding_attention", "full_attention", "sliding_attention"}, nil},
		{"Qwen3.5-35B-A3B", "layer_types", 4, []any{"linear_attention", "linear_attention", "linear_attention",
			"full_attention"}, nil},
		{"Nemotron-3-Nano-30B-A3B", "hybrid_override_pattern", 6, "MEMEM*", nil},
		{"MiniMax-M2", "attn_type_list", 2, []any{int64(1), int64(1)}, nil},
		{"gpt-oss-20b", "layer_types", 1, []any{"full_attention"},
			[]string{"model.config.layer_types=['full_attention']"}},
	} {
		s := parsePublished(t, c.name, append(c.set, fmt.Sprintf("model.config.num_hidden_layers=%d", c.layers))...)
		if got := s.Model.Config[c.field]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s with %d layers: %s %v, want %v", c.name, c.layers, c.field, got, c.want)
		}
	}
}

// No entry has a list or pattern over its layers that fewerLayers does not know.
func TestPerLayerFields(t *testing.T) {
	var walk func(name string, config map[string]any)
	walk = func(name string, config map[string]any) {
		layers, _ := config["num_hidden_layers"].(int64)
		for key, v := range config {
			n := -1
			switch v := v.(type) {
			case map[string]any:
				walk(name, v)
			case []any:
				n = len(v)
			case string:
				n = len(v)
			}
			if n == int(layers) && !slices.Contains(perLayer, key) {
				t.Errorf("%s: %s has an item for each of %d layers and is not cut with them", name, key, layers)
			}
		}
	}
	for _, name := range Published() {
		text, err := PublishedConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		walk(name, jsonTable(text))
	}
}

func TestBadCatalogue(t *testing.T) {
	for _, c := range []struct {
		name, want string
		set        []string
	}{
		{"Qwen3-30B-A3", `s.toml:2: model.catalogue: "Qwen3-30B-A3" is not in the catalogue: did you mean ` +
			`Qwen3-30B-A3B?`, nil},
		{"kimi", `s.toml:2: model.catalogue: "kimi" is not in the catalogue: did you mean Kimi-K2?`, nil},
		{"of none",
			`s.toml:2: model.catalogue: "of none" is not in the catalogue: see lockstep shapes for the list`, nil},
		{"../shape", `s.toml:2: model.catalogue: "../shape" is not in the catalogue: see lockstep shapes for the list`,
			nil},
		{"Qwen3-8B", `s.toml:2: model.catalogue: catalogue sets the family and its sizes, remove path and family, or ` +
			`catalogue`, []string{"model.family=qwen3"}},
		{"Qwen3-8B", `s.toml:2: model.catalogue: catalogue sets the family and its sizes, remove path and family, or ` +
			`catalogue`, []string{"model.path=x"}},
		{"Qwen3-8B", `--set model.config.num_hidden_layers=37: model.config: Qwen3-8B: num_hidden_layers is 37, want ` +
			`at most the published 36`, []string{"model.config.num_hidden_layers=37"}},
		{"Qwen3-8B", `--set model.config.model_type=llama: model.config: its model_type contradicts family, remove it`,
			[]string{"model.config.model_type=llama"}},
	} {
		same(t, problems(t, fmt.Sprintf(published, c.name), c.set...), []string{c.want})
	}
	same(t, problems(t, strings.Replace(published, `catalogue = "%s"`, "", 1)), []string{
		`s.toml:1: model.path: is missing, give path (a checkpoint), family (a new network) or catalogue (a ` +
			`published one)`,
	})
}
