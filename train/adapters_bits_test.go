package train

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/model"
)

// adapted is two steps of four packs with adapters.
const adapted = `
[model]
path = "%s"
dtype = "%s"
[definition]
dot = "%s"
[data]
path = "%s"
pack_rows = 20
[lora]
rank = 3
targets = ["%s"]
target_parameters = %s
[optim]
lr = 1e-2
[run]
steps = 2
packs = 4
verify_tokens = 0
[device]
threads = 1
`

// Adapters of every projection of every family, latent attention in both forms, come out byte for byte the same, and so
// do their moments, in micro-batches of 1, 2 and 4 packs and where blocks are recomputed on two threads.
func TestAdapterBits(t *testing.T) {
	eachFamily(t, func(t *testing.T, dir string, vocab int) {
		targets, parameters := everyProjection(t, dir)
		lines := filepath.Join(t.TempDir(), "texts.jsonl")
		writeIDs(t, lines, ragged(vocab, 24, 18), 18)
		for _, c := range [][2]string{{"fp32", "fma"}, {"bf16", "tc16"}} {
			shape := fmt.Appendf(nil, adapted, dir, c[0], c[1], lines, strings.Join(targets, `", "`), parameters)
			for _, form := range latentForms(t, dir) {
				sameAdapters(t, shape, "definition.latent="+form)
			}
		}
	})
}

// sameAdapters holds runs of the shape in micro-batches against each other.
func sameAdapters(t *testing.T, shape []byte, form string) {
	t.Helper()
	want := adapterRun(t, shape, form, "run.micro_batch=1")
	for _, set := range [][]string{
		{"run.micro_batch=2", "run.recompute=true", "device.threads=2"}, {"run.micro_batch=4"},
	} {
		if got := adapterRun(t, shape, append(set, form)...); got != want {
			t.Errorf("%s, %v: %s, want %s", form, set, got, want)
		}
	}
	if got := adapterRun(t, shape, form, "run.seed=2"); got == want {
		t.Errorf("%s: another order of the data gives the same bits: the test cannot fail", form)
	}
}

// latentForms are the values of definition.latent that differ for a checkpoint's model.
func latentForms(t *testing.T, dir string) []string {
	t.Helper()
	for _, b := range described(t, dir).Blocks {
		for _, sub := range b {
			if _, ok := sub.Layer.(*model.MLA); ok {
				return []string{"absorbed", "expanded"}
			}
		}
	}
	return []string{"auto"}
}

// described is the model of a checkpoint's config.json, without memory.
func described(t *testing.T, dir string) *model.Model {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Describe(text, kernels.F32)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// everyProjection is lora.targets and, as TOML, lora.target_parameters of all that a checkpoint's model can adapt.
func everyProjection(t *testing.T, dir string) (targets []string, parameters string) {
	t.Helper()
	found := map[bool][]string{true: {}}
	for _, b := range described(t, dir).Blocks {
		for _, sub := range b {
			for _, l := range sub.Layer.Linears() {
				for _, s := range l.Subs {
					if !slices.Contains(found[l.Fused], s.Module) {
						found[l.Fused] = append(found[l.Fused], s.Module)
					}
				}
			}
		}
	}
	return found[false], strings.ReplaceAll(fmt.Sprintf("%q", found[true]), `" "`, `", "`)
}

// ragged is n random sequences of up to so many tokens, at least 2.
func ragged(vocab, n, most int) (texts [][]int32) {
	rng := rand.New(rand.NewPCG(3, 5))
	for range n {
		text := make([]int32, 2+rng.IntN(most-1))
		for i := range text {
			text[i] = rng.Int32N(int32(vocab))
		}
		texts = append(texts, text)
	}
	return texts
}

// adapterRun is the digest of the adapter and the moments after a run.
func adapterRun(t *testing.T, shape []byte, set ...string) string {
	t.Helper()
	s, err := configs.Parse("adapted.toml", shape, set)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	out := filepath.Join(t.TempDir(), "run")
	if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
		t.Fatal(err)
	}
	files, err := sums(filepath.Join(out, checkpointsDir, checkpointName(s.Run.Steps)))
	if err != nil {
		t.Fatal(err)
	}
	const weights = "model/adapter_model.safetensors"
	if files[weights] == "" || files[optimizerFile] == "" {
		t.Fatalf("a checkpoint without %s or %s: %v", weights, optimizerFile, files)
	}
	return files[weights] + " " + files[optimizerFile]
}
