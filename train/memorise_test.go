package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
	"lockstep/train/runlog"
	"lockstep/train/setup"
)

// memorise over-fits a model folder of random weights to the lines of a JSONL file.
const memorise = `
[model]
path = "%s"
[data]
path = "%s"
pack_rows = 128
[optim]
lr = 6e-3
schedule = "linear"
warmup_steps = 5
[run]
steps = 70
packs = 1
save_every = 0
log_every = 70
verify_tokens = 0
[device]
threads = 1
`

const (
	memorised       = 8  // sequences
	memorisedLength = 16 // tokens of each
)

// Every family learns 8 sequences of noise by heart and gives them back: the whole way from a folder through training
// to a folder, and from there through the engine.
func TestMemorises(t *testing.T) { eachFamily(t, learnByHeart) }

// eachFamily runs a test on every checkpoint of package model's testdata, which have every family.
func eachFamily(t *testing.T, body func(t *testing.T, dir string, vocab int)) {
	found, err := filepath.Glob("../model/testdata/*/config.json")
	if err != nil {
		t.Fatal(err)
	}
	covered := map[string]bool{}
	for _, config := range found {
		dir := filepath.Dir(config)
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		var head struct {
			Family string `json:"model_type"`
		}
		if err := json.Unmarshal(text, &head); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(model.Families(), head.Family) {
			continue // one that a test of package model adds
		}
		m, err := model.Describe(text, kernels.F32)
		if err != nil {
			t.Fatal(err)
		}
		covered[m.Family] = true
		t.Run(filepath.Base(dir), func(t *testing.T) { body(t, dir, m.Vocab) })
	}
	for _, family := range model.Families() {
		if !covered[family] && !covered[sameBuilder[family]] {
			t.Errorf("no folder of testdata is a %s", family)
		}
	}
}

// sameBuilder names, for a family without a folder, the one whose function builds it too.
var sameBuilder = map[string]string{"kimi_k2": "deepseek_v3", "qwen3_5": "qwen3_5_moe"}

func learnByHeart(t *testing.T, dir string, vocab int) {
	work := t.TempDir()
	texts := noise(vocab)
	lines, prompts := filepath.Join(work, "texts.jsonl"), filepath.Join(work, "prompts.jsonl")
	writeIDs(t, lines, texts, memorisedLength)
	writeIDs(t, prompts, texts, 1)
	if got := recite(t, dir, prompts); agreeing(got, texts) == memorised {
		t.Fatal("the sequences are known before training: the test cannot fail")
	}
	s, err := configs.Parse("memorise.toml", fmt.Appendf(nil, memorise, dir, lines), nil)
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(work, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	out := filepath.Join(work, "run")
	if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
		t.Fatal(err)
	}
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	loss := float64(*records[len(records)-1].Loss)
	t.Logf("loss %.4f at first, %.4f in step %d", float64(*records[0].Loss), loss, s.Run.Steps)
	if !(loss < 0.05) {
		t.Error("want a loss below 0.05")
	}
	if n := agreeing(recite(t, filepath.Join(out, "model"), prompts), texts); n != memorised {
		t.Errorf("%d of %d sequences come back", n, memorised)
	}
}

// noise is random sequences whose first tokens, which are all that the engine is told, differ.
func noise(vocab int) (texts [][]int32) {
	rng := rand.New(rand.NewPCG(8, 24))
	first := rng.Perm(vocab)
	for i := range memorised {
		text := []int32{int32(first[i])}
		for len(text) < memorisedLength {
			text = append(text, int32(rng.IntN(vocab)))
		}
		texts = append(texts, text)
	}
	return texts
}

// writeIDs writes at most n tokens of each.
func writeIDs(t *testing.T, path string, texts [][]int32, n int) {
	t.Helper()
	var b strings.Builder
	for _, text := range texts {
		line, err := json.Marshal(map[string][]int32{"ids": text[:min(n, len(text))]})
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// recite continues prompts greedily with the model of a folder.
func recite(t *testing.T, dir, prompts string) (got [][]int32) {
	t.Helper()
	s := configs.Default()
	s.Device.Threads = 1
	s.ResolveAuto()
	dev, err := devices.Open(setup.Device(s))
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	out := filepath.Join(t.TempDir(), "out.jsonl")
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, err := serve.Open(nil, r, dir, "", model.Options{})
		if err != nil {
			return err
		}
		_, err = serve.Generate(context.Background(), m, prompts, out, setup.EngineOptions(s),
			serve.Sampling{MaxTokens: memorisedLength - 1, TopP: 1, N: 1, IgnoreEOS: true})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var answer struct{ IDs []int32 }
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			t.Fatal(err)
		}
		got = append(got, answer.IDs)
	}
	return got
}

// agreeing counts the answers that are the rest of their texts.
func agreeing(got, texts [][]int32) (n int) {
	for i, ids := range got {
		if slices.Equal(ids, texts[i][1:]) {
			n++
		}
	}
	return n
}
