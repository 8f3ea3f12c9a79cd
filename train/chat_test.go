package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/data/tokenizer"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/serve"
)

// glmSpecials are the special tokens of the GLM-like template; its model ends at the first three.
var glmSpecials = []string{"<|endoftext|>", "<|user|>", "<|observation|>", "<|assistant|>", "<|system|>", "[gMASK]",
	"<sop>"}

// glmFolder makes the folder of a tiny network of GLM's, with random weights, a tokenizer of bytes, and a template in
// which nothing ends an answer but the token that opens the next message. ends is eos_token_id of its
// generation_config.json.
func glmFolder(t *testing.T, ends ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	config := map[string]any{}
	text, err := os.ReadFile("../model/testdata/glm4_moe/config.json")
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	if err != nil {
		t.Fatal(err)
	}
	tok := tokenizer.NewBytes(glmSpecials)
	var ids []int32
	for _, end := range ends {
		id, ok := tok.ID(end)
		if !ok {
			t.Fatalf("no token %s", end)
		}
		ids = append(ids, id)
	}
	maps.Copy(config, map[string]any{"vocab_size": tok.Vocab(), "num_hidden_layers": 2, "eos_token_id": ids[0]})
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	generation, err := json.Marshal(map[string]any{"eos_token_id": ids})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m, err := model.Build(dev, text, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.Initialise(1)
	template, err := os.ReadFile("../data/testdata/templates/glm.jinja")
	err = errors.Join(err, m.SaveFolder(dir, ""), tok.Save(filepath.Join(dir, "tokenizer.json")),
		os.WriteFile(filepath.Join(dir, "chat_template.jinja"), template, 0o600),
		os.WriteFile(filepath.Join(dir, "generation_config.json"), generation, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// glmChats writes conversations of one answer or two, and prompts that ask for what they do.
func glmChats(t *testing.T, path string, n int, answers bool) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		user := fmt.Sprintf(`{"role": "user", "content": "say %d"}`, 10+i%90)
		said := fmt.Sprintf(`, {"role": "assistant", "content": "%d"}`, 10+i%90)
		switch {
		case !answers:
			said = ""
		case i%3 == 0:
			said += `, {"role": "user", "content": "bye"}, {"role": "assistant", "content": "bye"}`
		}
		fmt.Fprintf(&b, "{\"messages\": [%s%s], \"source\": %d}\n", user, said, i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// stopped generates from a model folder and counts the answers that stop by themselves.
func stopped(t *testing.T, dir, prompts string, temperature float64) (stops, all int, texts []string) {
	t.Helper()
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	out := filepath.Join(t.TempDir(), "made.jsonl")
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, err := serve.Open(nil, r, dir, "", model.Options{})
		if err == nil {
			q := serve.Sampling{MaxTokens: 64, Temperature: temperature, TopP: 1, N: 1, Seed: 1}
			o := serve.Options{Slots: 64, PageRows: 32, PrefillRows: 256}
			_, err = serve.Generate(context.Background(), m, prompts, out, o, q)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for ; lines.Scan(); all++ {
		var l struct {
			Text   string
			Finish serve.FinishReason `json:"finish_reason"`
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if l.Finish == serve.FinishStop {
			stops++
		}
		texts = append(texts, l.Text)
	}
	return stops, all, texts
}

// trainChats fine-tunes a model folder on conversations and returns the run's folder and what it said.
func trainChats(t *testing.T, dir string, set ...string) (out, said string, err error) {
	t.Helper()
	work := t.TempDir()
	chats := glmChats(t, filepath.Join(work, "chats.jsonl"), 180, true)
	s, err := configs.Parse("chat.toml", nil, append([]string{
		"model.path=" + dir, "data.path=" + chats, "data.pack_rows=256", "optim.lr=5e-3", "optim.warmup_steps=5",
		"optim.weight_decay=0",
		"run.name=chat", "run.steps=80", "run.packs=2", "run.save_every=80", "run.verify_tokens=0", "run.eval_every=0",
	}, set...))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(work, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	out = filepath.Join(work, "run")
	err = Run(context.Background(), s, Options{Out: out, Log: log})
	return out, string(readAll(t, filepath.Join(work, "log"))), err
}

// A network of GLM's, fine-tuned on conversations, ends all of 200 answers by itself, drawn or the likeliest.
func TestChatStops(t *testing.T) {
	dir := glmFolder(t, glmSpecials[:3]...)
	out, said, err := trainChats(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	prompts := glmChats(t, filepath.Join(t.TempDir(), "prompts.jsonl"), 200, false)
	for _, temperature := range []float64{0, 1} {
		n, all, texts := stopped(t, filepath.Join(out, "model"), prompts, temperature)
		if n != 200 || all != 200 {
			t.Errorf("at temperature %g %d of %d answers stop by themselves", temperature, n, all)
		}
		if i := slices.IndexFunc(texts, func(s string) bool { return strings.Contains(s, "<|user|>") }); i >= 0 {
			t.Errorf("the end is part of the answer %q", texts[i])
		}
		t.Logf("temperature %g: %d of %d stop; %q ...", temperature, n, all, texts[:3])
	}
	want := `⟦\n<think></think>\n10<|user|>⟧\nbye<|assistant|>⟦\n<think></think>\nbye<|user|>⟧`
	if !strings.Contains(said, want) {
		t.Errorf("the run shows\n%swant\n%s", said, want)
	}
	if strings.Count(said, "chats.jsonl:1: field source is ignored\n") != 1 || strings.Count(said, "is ignored") != 1 {
		t.Errorf("the run says of fields that nothing reads\n%s", said)
	}
	const generation = "generation_config.json"
	if !slices.Equal(readAll(t, filepath.Join(out, "model", generation)), readAll(t, filepath.Join(dir, generation))) {
		t.Errorf("the saved model has another %s", generation)
	}
}

// Where the template's end is none of the model's the run is refused; with data.no_end it learns answers that go on.
func TestChatNoEnd(t *testing.T) {
	dir := glmFolder(t, "<|endoftext|>")
	_, _, err := trainChats(t, dir)
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "chats.jsonl:1: ") ||
		!strings.Contains(err.Error(), `chat_template.jinja: no answer ends with one of ["<|endoftext|>"], "<|user|>`) {
		t.Errorf("answers without an end: %v", err)
	}
	out, _, err := trainChats(t, dir, "data.no_end=true")
	if err != nil {
		t.Fatal(err)
	}
	prompts := glmChats(t, filepath.Join(t.TempDir(), "prompts.jsonl"), 200, false)
	if n, all, _ := stopped(t, filepath.Join(out, "model"), prompts, 0); n > 0 || all != 200 {
		t.Errorf("%d of %d answers end by what was never learned: TestChatStops shows nothing", n, all)
	}
}

func readAll(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
