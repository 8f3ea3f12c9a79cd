package model

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/kernels"
)

// No number of a config.json is too large: each becomes an error, soon, or what the model does not use.
func TestSizes(t *testing.T) {
	refused := 0
	files, err := filepath.Glob("testdata/*/config.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		dir := filepath.Base(filepath.Dir(file))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range ConfigKeys() {
			for _, value := range []string{"4611686018427387904", "9223372036854775807", "1000000000", "16777216",
				"-9223372036854775808", "65536", "0"} {
				refused += describeWith(t, dir, text, key, value)
			}
		}
	}
	if refused < 1000 {
		t.Errorf("%d numbers were refused", refused)
	}
}

// describeWith puts a number into a config.json, in text_config where the key is there; 1 if it is refused.
func describeWith(t *testing.T, dir string, text []byte, key, value string) int {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	in := config
	if inner, ok := config["text_config"].(map[string]any); ok && inner[key] != nil {
		in = inner
	}
	if _, ok := in[key].(float64); !ok {
		return 0
	}
	in[key] = json.Number(value)
	changed, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err = Describe(changed, kernels.F32)
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("%s: %s = %s took %v", dir, key, value, took)
	}
	if err == nil {
		return 0
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %s = %s: %v", dir, key, value, err)
	}
	return 1
}

// Sizes that are each in range may still multiply to more than 64 bits hold.
func TestProductsOfSizes(t *testing.T) {
	text := `{"model_type": "qwen3", "hidden_size": 16777216, "num_hidden_layers": 1024, "vocab_size": 16777216,
		"num_attention_heads": 16777216, "num_key_value_heads": 16777216, "head_dim": 16777216,
		"intermediate_size": 16777216, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "hidden_act": "silu"}`
	if _, err := Describe([]byte(text), kernels.F32); err == nil || !strings.Contains(err.Error(), "more than 17592") {
		t.Errorf("%v", err)
	}
}
