package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/train/testshape"
)

// zeroRouters makes the routers of a saved model choose the first experts for every token: all scores are equal.
func zeroRouters(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "model.safetensors")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	body := 8 + binary.LittleEndian.Uint64(raw)
	var header map[string]struct {
		At []uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw[8:body], &header); err != nil {
		t.Fatal(err)
	}
	routers := 0
	for name, of := range header {
		if strings.HasSuffix(name, "mlp.gate.weight") {
			clear(raw[body+of.At[0] : body+of.At[1]])
			routers++
		}
	}
	if routers != 2 {
		t.Fatalf("%d routers", routers)
	}
	if err := os.WriteFile(path, bytes.Clone(raw), 0o644); err != nil {
		t.Fatal(err)
	}
}

// An owner whose experts all tokens choose computes its rows in pieces, within the memory that was planned, and comes
// to the files of one rank.
func TestOverloadedOwner(t *testing.T) {
	few := []string{"run.steps=1", "optim.warmup_steps=0", "data.eval_samples=0", "model.dtype=bf16"}
	run := func(text, out string, set ...string) string {
		s, err := configs.Parse("overloaded.toml", []byte(text), append(slices.Clone(few), set...))
		if err != nil {
			t.Fatal(err)
		}
		if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, uint64(len(set)))); err != nil {
			t.Fatal(err)
		}
		return wholeDigest(t, out)
	}
	first := filepath.Join(t.TempDir(), "first")
	run(testshape.Tiny, first)
	model := filepath.Join(first, "model")
	zeroRouters(t, model)
	_, rest, _ := strings.Cut(testshape.Tiny, "[data]")
	text := fmt.Sprintf("[model]\npath = %q\n[data]%s", model, rest)
	for name, set := range map[string][]string{
		"full": {"run.recompute=none"},
		"lora": {"run.steps=2", "lora.rank=4", "lora.targets=q_proj", "lora.target_parameters=mlp.experts.down_proj",
			"run.recompute=full"},
	} {
		set = append(set, "run.packs=8", "data.pack_rows=300", "run.micro_batch=2", "definition.segment=192")
		want := run(text, filepath.Join(t.TempDir(), "run"), set...)
		for _, ranks := range []int{2, 4} {
			for lanes := 1; lanes <= 2; lanes++ {
				mesh := []string{fmt.Sprintf("parallel.ranks=%d", ranks), fmt.Sprintf("parallel.experts=%d", ranks),
					fmt.Sprintf("parallel.interleave=%d", lanes)}
				out := filepath.Join(t.TempDir(), "run")
				if got := run(text, out, append(mesh, set...)...); got != want {
					t.Errorf("%s, %v:\n%s\nwant\n%s", name, mesh, got, want)
				}
				if n := resultOf(t, out).Memory; n.Device != n.PlannedDevice {
					t.Errorf("%s, %v: took %d bytes, planned %d", name, mesh, n.Device, n.PlannedDevice)
				}
			}
		}
	}
}
