package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/train/setup"
)

// publishedSizes are parameters in billions as the vendors count them, or as their names say where that is exact
// enough.
var publishedSizes = map[string]struct{ total, active float64 }{
	"GLM-4.5-Air":             {total: 106},
	"GLM-4.7-Flash":           {total: 30},
	"GLM-5":                   {total: 744},
	"GLM-5.2":                 {total: 744},
	"gpt-oss-120b":            {117, 5.7}, // 116.8 in the model card, which does not count the embedding as active
	"gpt-oss-20b":             {total: 20.9},
	"Kimi-K2":                 {1026, 32.9},
	"Kimi-K2.5":               {1026, 32.9},
	"Llama-3.1-405B":          {405, 405},
	"Llama-3.1-8B":            {8.03, 8.03},
	"Llama-3.2-1B":            {1.24, 1.24},
	"Llama-3.2-3B":            {3.21, 3.21},
	"Llama-3.3-70B":           {70.6, 70.6},
	"MiniMax-M2":              {total: 230},
	"Nemotron-3-Nano-30B-A3B": {31.6, 3.6},
	"Qwen3-0.6B":              {0.6, 0.6},
	"Qwen3-1.7B":              {1.7, 1.7},
	"Qwen3-4B":                {4, 4},
	"Qwen3-8B":                {8.2, 8.2},
	"Qwen3-14B":               {14.8, 14.8},
	"Qwen3-32B":               {32.8, 32.8},
	"Qwen3-30B-A3B":           {30.5, 3.3},
	"Qwen3-235B-A22B":         {235, 22},
	"Qwen3.5-27B":             {27, 27},
	"Qwen3.5-35B-A3B":         {total: 35},
	"Qwen3.5-397B-A17B":       {total: 397},
}

// notBuilt are families that a config.json of the catalogue has and that no file of model builds yet.
var notBuilt = []string{"qwen3_vl"}

// No key of a published file is taken for another one misspelt, and a misspelt one is found at any depth.
func TestMisspelt(t *testing.T) {
	for _, name := range configs.Published() {
		text, err := configs.PublishedConfig(name)
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal(text, &config); err != nil {
			t.Fatal(err)
		}
		if err := setup.CheckConfig(config); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		inner := config
		if text, ok := config["text_config"].(map[string]any); ok {
			inner = text
		}
		inner["hiden_size"] = 1
		if err := setup.CheckConfig(config); err == nil ||
			!strings.HasSuffix(err.Error(), "did you mean hidden_size?") {
			t.Errorf("%s: hiden_size passes: %v", name, err)
		}
	}
}

func TestCatalogue(t *testing.T) {
	list, err := Catalogue()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range configs.Published() {
		e, err := published(name)
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := Describe(name, DefaultStepSize())
		if err != nil || !strings.Contains(list, name+" ") || !strings.Contains(text, string(e.config)) {
			t.Errorf("%s: listed as\n%s\nshown as\n%s\n(%v)", name, list, text, err)
		}
		want, sized := publishedSizes[name]
		if e.summary == nil {
			if !slices.Contains(notBuilt, e.head.Family) || !strings.Contains(text, "not built yet") {
				t.Errorf("%s: nothing builds a %s, and it says\n%s", name, e.head.Family, text)
			}
			continue
		}
		if !sized {
			t.Errorf("%s: add its published size", name)
		}
		near(t, name+" total", e.summary.Total, want.total)
		if want.active > 0 {
			near(t, name+" active", e.summary.Active, want.active)
		}
	}
}

// near wants a count within 2% of so many billions.
func near(t *testing.T, what string, got int, want float64) {
	t.Helper()
	if x := float64(got) / 1e9; !(math.Abs(x/want-1) < 0.02) {
		t.Errorf("%s: %.3f billion parameters, published are %g", what, x, want)
	}
}

// What fills a device to its last byte fits.
func TestDevicesThatHold(t *testing.T) {
	for need, want := range map[int]string{1: "1", 100: "1", 101: "2", 300: "4", 800: "8", 801: "-"} {
		if got := deviceCount(need, 100); got != want {
			t.Errorf("%d bytes on devices of 100: %s, want %s", need, got, want)
		}
	}
}

// Memory of the catalogue, by hand: 8.03 billion weights in bf16 take 2 bytes each, and 16 more of gradient, moments
// and master.
func TestDemands(t *testing.T) {
	e, err := published("Llama-3.1-8B")
	if err != nil {
		t.Fatal(err)
	}
	const weights = 8030261248
	d := e.summary.Demands[1]
	if e.summary.Total != weights || d.DType != kernels.BF16 || d.Full.Weights != 2*weights ||
		d.Full.Training != 16*weights {
		t.Errorf("%d weights: %+v", e.summary.Total, d)
	}
	if d.Full.Token != 32*2*8*128*2 || d.Full.Sequence != 0 {
		t.Errorf("cache %+v, want 32 layers of keys and values, 8 heads of 128 in bf16", d.Full)
	}
	// inputs and outputs of q, o; k, v; gate, up, down
	adapters := 32 * model.AdapterRank * (4*4096 + 2*1024 + 2*4096 + 3*(4096+14336))
	if d.LoRA.Weights != 2*(weights+adapters) || d.LoRA.Training != 16*adapters {
		t.Errorf("adapters %+v, want %d weights more", d.LoRA, adapters)
	}
	for _, c := range []struct {
		gib                  int
		dtype                kernels.DType
		g80, g141, g192, ram string
	}{
		{60, kernels.BF16, "1", "1", "1", "128 GiB"}, {70, kernels.BF16, "2", "1", "1", "128 GiB"},
		{130, kernels.BF16, "2", "2", "1", "256 GiB"},
		{500, kernels.BF16, "8", "8", "4", "1024 GiB"}, {1000, kernels.BF16, "-", "-", "8", "2048 GiB"},
		{60, kernels.F32, "-", "-", "-", "128 GiB"},
	} {
		if got := fmt.Sprint(fits("x", c.dtype, c.gib<<30)[2:]...); got != fmt.Sprint(c.g80, c.g141, c.g192, c.ram) {
			t.Errorf("%d GiB in %s: %s, want %+v", c.gib, c.dtype, got, c)
		}
	}
}
