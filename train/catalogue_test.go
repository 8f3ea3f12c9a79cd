package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/model"
	"lockstep/train/runlog"
)

// narrow makes any config of the catalogue small enough for a test; a family reads the fields that it has.
var narrow = map[string]any{
	"num_hidden_layers": 6, "hidden_size": 32, "vocab_size": 320, "intermediate_size": 32,
	"max_position_embeddings": 128,
	"num_attention_heads":     4, "num_key_value_heads": 2, "head_dim": 16, "rotary_dim": 8,
	"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
	"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
	"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2,
	"num_experts": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
	"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
}

// Every entry whose family is built trains a step, with all that belongs to a run, once it is cut.
func TestReducedCatalogue(t *testing.T) {
	for _, name := range configs.Published() {
		config, built := published(t, name)
		if !built {
			continue
		}
		t.Run(name, func(t *testing.T) {
			place := "model.config."
			if strings.Contains(config, `"text_config"`) {
				place += "text_config."
			}
			set := []string{}
			for key, value := range narrow {
				set = append(set, fmt.Sprintf("%s%s=%v", place, key, value))
			}
			records, err := reduced(t, name, set...)
			if err != nil {
				t.Fatal(err)
			}
			if loss := float64(*records[0].Loss); len(records) != 1 || !(math.Abs(loss-math.Log(320)) < 1) {
				t.Errorf("%d records, loss %.3f: want one near ln 320", len(records), loss)
			}
		})
	}
}

// published is the config.json of a published model; built tells whether its family is known.
func published(t *testing.T, name string) (config string, built bool) {
	t.Helper()
	text, err := configs.PublishedConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	var head struct {
		Family string `json:"model_type"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		t.Fatal(err)
	}
	return string(text), slices.Contains(model.Families(), head.Family)
}

func reduced(t *testing.T, name string, set ...string) ([]runlog.Record, error) {
	t.Helper()
	const shape = `
[model]
catalogue = "%s"
tokenizer = "bytes"
[data]
task = "countdown"
pack_rows = 128
eval_samples = 0
[data.countdown]
train = 20
test = 2
[run]
steps = 1
packs = 1
verify_tokens = 16
`
	s, err := configs.Parse("reduced.toml", fmt.Appendf(nil, shape, name), set)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	out := filepath.Join(t.TempDir(), "run")
	if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
		return nil, err
	}
	return runlog.ReadMetrics(out)
}

// A family that is not built yet is refused where it would be built.
func TestReducedNotBuilt(t *testing.T) {
	for _, name := range configs.Published() {
		if _, built := published(t, name); built {
			continue
		}
		if _, err := reduced(t, name); err == nil || !strings.Contains(err.Error(), "is not known") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
