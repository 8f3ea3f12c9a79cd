package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
)

var hostileCases = flag.Int("hostile", 80, "hostile inputs that TestHostile gives the program; .ci/hostile has 10,000")

// The most that a hostile input may take.
const (
	hostileTime   = 5 * time.Second  // of a core
	hostileWait   = 60 * time.Second // on a machine that has other work
	hostileMemory = 1 << 30
)

// hostileClass makes an input of a drawn kind in an empty folder, and returns what the program is to do with it.
type hostileClass func(t *testing.T, rng *rand.Rand, dir string) (args []string)

var hostileClasses = map[string]hostileClass{
	"shape":       hostileShape,
	"config.json": hostileConfig,
	"weights":     hostileWeights,
	"tokenizer":   hostileTokenizer,
	"template":    hostileTemplate,
	"jsonl":       hostileLines,
	"adapter":     hostileAdapter,
}

// tally is what happened to the inputs of a class.
type tally struct {
	cases, refused int
	panics, hangs  int
	large          int // beyond hostileMemory
	longest        time.Duration
	most           int64 // bytes
}

// TestHostile gives the program inputs that somebody made to break it. Each ends with success, or with exit code 1 and
// a message: none in a panic, after more than 5 seconds, or with more than a GiB of memory.
func TestHostile(t *testing.T) {
	names := slices.Sorted(maps.Keys(hostileClasses))
	tallies := map[string]*tally{}
	for i := range *hostileCases {
		name := names[i%len(names)]
		if tallies[name] == nil {
			tallies[name] = &tally{}
		}
		dir := filepath.Join(t.TempDir(), "case")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(uint64(i), 19))
		tallies[name].run(t, fmt.Sprintf("%s, case %d", name, i), hostileClasses[name](t, rng, dir))
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if l := tallies[name]; l != nil {
			if l.refused == l.cases && l.cases > 20 {
				t.Errorf("%s: all %d cases are refused: the test shows little", name, l.cases)
			}
			t.Logf("%-12s %5d cases, %5d refused, %d panics, %d hangs, %d too large; at most %v, %d MiB", name, l.cases,
				l.refused, l.panics, l.hangs, l.large, l.longest.Round(time.Millisecond), l.most>>20)
		}
	}
}

// hasControl tells whether a text has control characters other than newlines.
func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && unicode.IsControl(r) })
}

// run gives one input to the program and counts what happens.
func (l *tally) run(t *testing.T, what string, args []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostileWait)
	defer cancel()
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	var said bytes.Buffer
	c.Stderr = &said
	err := c.Run()
	took := c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	l.cases++
	l.longest, l.most = max(l.longest, took), max(l.most, peak(c.ProcessState))
	text, code := said.String(), c.ProcessState.ExitCode()
	lines, most := strings.Count(text, "\n"), 1
	if args[0] == "train" { // faults of a shape
		most = 21
	}
	switch {
	case ctx.Err() != nil || took > hostileTime:
		l.hangs++
		t.Errorf("%s: takes %v: %q", what, took, args)
	case code > 1 || code < 0 || strings.Contains(text, "goroutine ") || strings.Contains(text, "internal error"):
		l.panics++
		t.Errorf("%s: exit code %d: %.2000s", what, code, text)
	case peak(c.ProcessState) > hostileMemory:
		l.large++
		t.Errorf("%s: %d MiB: %q", what, peak(c.ProcessState)>>20, args)
	case err != nil && (lines == 0 || lines > most || len(text) > 2000*most || hasControl(text)):
		t.Errorf("%s: refused with %d lines of %d bytes: %.500s", what, lines, len(text), text)
	}
	if err != nil {
		l.refused++
	}
}

// Whatever names a file has in it, a message is one line without control characters, and not long.
func TestHostileNames(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	const from = "model/testdata/qwen3"
	for what, name := range map[string]string{
		"newline": "a\nlockstep: done", "escape": "\x1b]0;x\x07\r", "separator": "a\u2028b\u0085c",
		"long": strings.Repeat("x", 3000),
	} {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		q := string(quoted)
		model, adapter := at("model"+what), at("adapter"+what)
		renamed := func(dir, from, file, tensor string) string {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			hostileModel(t, dir, from, nil)
			header(t, filepath.Join(dir, file), func(h string) string {
				if !strings.Contains(h, tensor) {
					t.Fatalf("the header has no %s: %.200s", tensor, h)
				}
				return strings.Replace(h, tensor, q, 1)
			})
			return dir
		}
		renamed(model, from, "model.safetensors", `"model.norm.weight"`)
		renamed(adapter, "model/testdata/adapters/qwen3", "adapter_model.safetensors", `"base_model.model.`+
			`model.layers.0.self_attn.q_proj.lora_A.weight"`)
		in := write(t, at("in.jsonl"), "{\"ids\":[1,2,3]}\n")
		score := []string{"score", "--in", in, "--out", at("out"), "--model"}
		refused(t, dir, []string{"model.norm.weight"}, append(score, model)...)
		refused(t, dir, []string{"lora_A"}, append(score, from, "--adapter", adapter)...)
		refused(t, dir, nil, append(score, name)...)
		config := read(t, from+"/config.json")
		for _, changed := range []string{
			strings.Replace(config, `"qwen3"`, q, 1),
			strings.Replace(config, `"hidden_act": "silu"`, `"hidden_act": `+q, 1),
			strings.Replace(config, "{", `{"quantization_config": {"quant_method": `+q+"},", 1),
			strings.Replace(config, "{", `{"eos_token_id": `+q+",", 1),
		} {
			if changed == config {
				t.Fatal("the config.json is as it was")
			}
			write(t, filepath.Join(model, "config.json"), changed)
			refused(t, dir, nil, "inspect", model)
		}
		refused(t, dir, nil, "shapes", name)
		refused(t, dir, nil, "train", write(t, at("shape.toml"), strings.Replace(read(t, shape), "[run]\n",
			"[run]\n"+q+" = 1\n", 1)))
		for _, line := range []string{`{` + q + `: [1]}`, `{"ids": ` + q + `}`,
			`{"prompt": "a", "messages": [{"role": ` + q + `, "content": "a"}]}`, q, `{"messages": [{` + q + `: 1}]}`} {
			write(t, in, line+"\n")
			refused(t, dir, []string{"in.jsonl:1"}, "generate", "--in", in, "--out", at("out"), "--model", from)
		}
	}
}
