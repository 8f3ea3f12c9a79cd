package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
)

// small makes the shape of the tests' model out of configs/countdown-sft.toml.
var small = []string{
	"--set=model.config.hidden_size=32", "--set=model.config.num_experts=4",
	"--set=model.config.moe_intermediate_size=16", "--set=model.config.head_dim=8",
	"--set=data.countdown.train=40", "--set=data.countdown.test=4", "--set=data.eval_samples=2",
	"--set=data.pack_rows=256", "--set=run.steps=2", "--set=run.save_every=1",
	"--set=optim.warmup_steps=1", "--set=run.packs=2", "--set=run.verify_tokens=64", "--set=rollout.max_tokens=4",
}

const shape = "configs/countdown-sft.toml"

const asProgram = "LOCKSTEP_TEST_MAIN" // makes this test binary the program

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// lockstep runs the program.
func lockstep(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	var out, problems bytes.Buffer
	c.Stdout, c.Stderr = &out, &problems
	err := c.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String(), problems.String()
}

// must runs the program and wants success.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, out, problems := lockstep(t, args...)
	if code != 0 {
		t.Fatalf("%q: exit code %d: %s", args, code, problems)
	}
	return out
}

// refused runs the program and wants exit code 1, one line on stderr with all the words, nothing on stdout, and folder
// dir as it was.
func refused(t *testing.T, dir string, words []string, args ...string) {
	t.Helper()
	before := listing(t, dir)
	code, out, problems := lockstep(t, args...)
	if code != 1 || out != "" || !strings.HasPrefix(problems, "lockstep: ") || strings.Count(problems, "\n") != 1 ||
		hasControl(problems) {
		t.Errorf("%q: exit code %d, stdout %q, stderr %q: want exit code 1 and one line", args, code, out, problems)
	}
	for _, w := range words {
		if !strings.Contains(problems, w) {
			t.Errorf("%q: %swants %q", args, problems, w)
		}
	}
	if after := listing(t, dir); after != before {
		t.Errorf("%q: wrote into the folder:\n%s\nwas\n%s", args, after, before)
	}
}

// listing is the names, sizes and dates of everything in a folder.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && !e.IsDir() {
			b.WriteString(path + " " + info.ModTime().String() + " " + info.Mode().String() + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// trained makes a run and an input file for the tests below.
func trained(t *testing.T, more ...string) (dir, run string) {
	t.Helper()
	dir = t.TempDir()
	run = filepath.Join(dir, "run")
	must(t, slices.Concat([]string{"train", shape, "--out", run}, small, more)...)
	write(t, filepath.Join(dir, "ids.jsonl"), "{\"ids\":[1,2,3]}\n")
	return dir, run
}

// Every command of the README, one after the other.
func TestCommands(t *testing.T) {
	dir, run := trained(t)
	model, at := filepath.Join(run, "model"), func(name string) string { return filepath.Join(dir, name) }
	must(t, "score", "--model", model, "--in", at("ids.jsonl"), "--out", at("scores"), "--logits")
	write(t, at("prompts.jsonl"),
		"{\"ids\":[1,2]}\n{\"prompt\":\"12 7\"}\n{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}\n")
	must(t, "generate", "--model", model, "--in", at("prompts.jsonl"), "--out", at("made.jsonl"), "--n", "2",
		"--max-tokens", "3", "--temperature", "0.6", "--ignore-eos")
	lines := strings.Split(strings.TrimSpace(read(t, at("made.jsonl"))), "\n")
	if len(lines) != 6 {
		t.Errorf("%d samples of 3 prompts, twice each", len(lines))
	}
	for _, line := range lines {
		var s struct {
			IDs          []int32   `json:"ids"`
			LogProbs     []float64 `json:"logprobs"`
			Text         *string   `json:"text"`
			FinishReason string    `json:"finish_reason"`
		}
		if err := json.Unmarshal([]byte(line), &s); err != nil || len(s.IDs) != 3 || len(s.LogProbs) != 3 ||
			s.Text == nil || s.FinishReason != "length" {
			t.Errorf("sample %s (%v)", line, err)
		}
	}
	if out := must(t, "parity", "--model", model, "--rollout", at("made.jsonl")); !strings.Contains(out,
		"bit-identical: 18 log-probabilities") {
		t.Errorf("parity printed %s", out)
	}
	out := must(t, "parity", "--model", model, "--rollout", at("made.jsonl"), "--against", "weights=fp8", "--json")
	var parity struct {
		Recorded, Against struct{ Tokens, Equal int }
		Divergence        struct{ First struct{ Module, Op string } }
	}
	if err := json.Unmarshal([]byte(out), &parity); err != nil || parity.Recorded.Equal != 18 ||
		parity.Against.Equal == 18 || parity.Divergence.First.Op != "matmul q_proj" ||
		parity.Divergence.First.Module != "block 0 / attention" {
		t.Errorf("parity printed %s (%v)", out, err)
	}
	out = must(t, "parity", shape, "--tokens", "40", "--against", "weights=int4", "--against", "key_split=2048",
		"--json")
	var fidelity struct{ Against []struct{ KL float64 } }
	if err := json.Unmarshal([]byte(out), &fidelity); err != nil || len(fidelity.Against) != 2 ||
		!(fidelity.Against[0].KL > 0) || fidelity.Against[1].KL != 0 {
		t.Errorf("parity of a shape printed %s (%v)", out, err)
	}
	write(t, at("text.jsonl"), "{\"text\":\"12 + 7 = 19, naïve 中\"}\n{\"text\":\"\"}\n")
	must(t, "tokenize", "--model", model, "--in", at("text.jsonl"), "--out", at("tokens.jsonl"))
	must(t, "tokenize", "--model", model, "--in", at("tokens.jsonl"), "--out", at("back.jsonl"), "--decode")
	if got, want := read(t, at("back.jsonl")), read(t, at("text.jsonl")); got != want {
		t.Errorf("text %q came back as %q", want, got)
	}
	if out := must(t, "verify", "--model", model, "--tokens", "200"); !strings.Contains(out,
		"zero-KLD: 0 mismatched of ") {
		t.Errorf("verify printed %s", out)
	}
	if out := must(t, "devices"); !strings.HasPrefix(out, "cpu (") || strings.Count(out, "\n") < 2 {
		t.Errorf("devices printed %s", out)
	}
	if out := must(t, "inspect", model); !strings.Contains(out, "qwen3_moe") ||
		!strings.Contains(out, "of the host (optimizer state") {
		t.Errorf("inspect printed %s", out)
	}
	if out := must(t, "shapes"); !strings.Contains(out, "Qwen3-30B-A3B") {
		t.Errorf("shapes printed %s", out)
	}
	if out := must(t, "shapes", "Qwen3-30B-A3B"); !strings.Contains(out, `"num_hidden_layers": 48`) ||
		!strings.Contains(out, "frozen weights 55.71 GiB") {
		t.Errorf("shapes of one printed %s", out)
	}
	cpu, err := configs.LoadMachine("1xH200")
	if err != nil {
		t.Fatal(err)
	}
	cpu.Name, cpu.Device = "like-one", "cpu"
	args := slices.Concat([]string{"train", shape, "--machine", write(t, at("cpu.toml"), string(cpu.TOML())), "--out",
		at("planned")}, small)
	if code, _, said := lockstep(t, args...); code != 0 || !strings.Contains(said, "plan by like-one: ") ||
		!strings.Contains(said, " a step of full packs; measured: ") {
		t.Errorf("trained on a machine that is known: exit code %d, %s", code, said)
	}
	if out := must(t, "plan", shape, "--machine", "1xH200"); !strings.Contains(out, "1 rank: ") ||
		!strings.Contains(out, "longest sequence: ") {
		t.Errorf("plan printed %s", out)
	}
	if code, _, problems := lockstep(t, "verify", "--model", model, "--tokens", "200", "--break", "split-k"); code !=
		1 || !strings.Contains(problems, "differ") {
		t.Errorf("a broken rule: exit code %d, %s", code, problems)
	}
	must(t, append([]string{"train", shape, "--out", run, "--resume"}, small...)...)
}

// An adapter and the model that it was trained on become a model folder that commands open; what the merge changed is
// printed, and nothing is left of one that fails.
func TestMergeCommand(t *testing.T) {
	dir, run := trained(t)
	model, more := filepath.Join(run, "model"), filepath.Join(dir, "more")
	must(t, append([]string{"train", shape, "--out", more, "--set=lora.rank=2", "--set=lora.targets=all-linear"},
		small...)...)
	adapter, out := filepath.Join(more, "adapter"), filepath.Join(dir, "merged")
	merge := []string{"merge", "--model", model, "--adapter", adapter, "--out", out}
	printed := must(t, merge...)
	for _, want := range []string{"projections merged, 0 parameters replaced, fp32", "largest difference",
		"a merge changes bits"} {
		if !strings.Contains(printed, want) {
			t.Errorf("merge printed %q, want %q", printed, want)
		}
	}
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		if read(t, filepath.Join(out, name)) != read(t, filepath.Join(model, name)) {
			t.Errorf("%s is another", name)
		}
	}
	must(t, "score", "--model", out, "--in", filepath.Join(dir, "ids.jsonl"), "--out", filepath.Join(dir, "scores"))
	refused(t, dir, []string{"exists"}, merge...)
	file := filepath.Join(adapter, "adapter_model.safetensors")
	text := read(t, file)
	write(t, file, text[:len(text)-4])
	merge[len(merge)-1] = filepath.Join(dir, "again")
	refused(t, dir, []string{"adapter_model.safetensors"}, merge...)
	config := filepath.Join(adapter, "adapter_config.json")
	write(t, file, text)
	write(t, config, strings.Replace(read(t, config), `"use_dora": false`, `"use_dora": true`, 1))
	refused(t, dir, []string{"use_dora is not supported"}, merge...)
}

// export writes what --weights makes of a model: scores of the folder are those of the model with that flag, on every
// byte, in codes and opened; opened for good they stay. What makes no sense is refused, and nothing is written.
func TestExport(t *testing.T) {
	dir, run := trained(t, "--set=model.config.moe_intermediate_size=32")
	model, ids := filepath.Join(run, "model"), filepath.Join(dir, "ids.jsonl")
	score := func(name string, args ...string) string {
		out := filepath.Join(dir, name)
		must(t, append([]string{"score", "--in", ids, "--out", out, "--model"}, args...)...)
		return read(t, out)
	}
	plain := score("plain", model)
	for _, format := range []string{"int4", "mxfp4", "mxfp8", "fp8"} {
		out, open := filepath.Join(dir, "in-"+format), filepath.Join(dir, "open-"+format)
		must(t, "export", "--model", model, "--weights", format, "--out", out)
		want := score("want", model, "--weights", format)
		if want == plain {
			t.Errorf("%s changes no score", format)
		}
		must(t, "export", "--model", out, "--weights", "open", "--out", open)
		for name, args := range map[string][]string{"kept": {out}, "opened": {out, "--weights", "open"},
			"numbers": {open}} {
			if score(name, args...) != want {
				t.Errorf("%s, %s: other scores", format, name)
			}
		}
		if read(t, filepath.Join(out, "tokenizer.json")) != read(t, filepath.Join(model, "tokenizer.json")) {
			t.Errorf("%s: another tokenizer", format)
		}
	}
	export := func(more ...string) []string { return append([]string{"export", "--model", model}, more...) }
	refused(t, dir, []string{"exists"}, export("--weights", "int4", "--out", run)...)
	new := filepath.Join(dir, "new")
	refused(t, dir, []string{"--weights auto"}, export("--weights", "auto", "--out", new)...)
	refused(t, dir, []string{"int3", "mxfp8"}, export("--weights", "int3", "--out", new)...)
	refused(t, dir, []string{"--coded", "experts"}, export("--weights", "int4", "--coded", "heads", "--out", new)...)
	_, run = trained(t)
	model = filepath.Join(run, "model")
	for _, format := range []string{"int4", "mxfp4", "mxfp8"} {
		refused(t, dir, []string{"down_proj", "no multiple of 32"}, export("--weights", format, "--out", new)...)
	}
}

// generate samples as generation_config.json says and ends where it says, but for what flags say; a line at the start
// names it.
func TestGenerationConfig(t *testing.T) {
	dir, run := trained(t)
	model, in, out := filepath.Join(run, "model"), filepath.Join(dir, "prompts.jsonl"), filepath.Join(dir, "made.jsonl")
	write(t, in, "{\"ids\":[1,2]}\n")
	base := []string{"generate", "--model", model, "--in", in, "--out", out}
	sample := func(args ...string) (ids []int32, temperature float64, finish, said string) {
		code, _, problems := lockstep(t, slices.Concat(base, []string{"--temperature", "1"}, args)...)
		var s struct {
			IDs         []int32 `json:"ids"`
			Temperature float64 `json:"temperature"`
			Finish      string  `json:"finish_reason"`
		}
		if err := json.Unmarshal([]byte(read(t, out)), &s); code != 0 || err != nil {
			t.Fatalf("%v: exit code %d, %s, %v", args, code, problems, err)
		}
		return s.IDs, s.Temperature, s.Finish, problems
	}
	ids, _, _, said := sample("--max-tokens", "6")
	if len(ids) != 6 || said != "" {
		t.Fatalf("%d ids, %q", len(ids), said)
	}
	file := filepath.Join(model, "generation_config.json")
	const settings = `"max_new_tokens": 5, "temperature": 0.5, "typical_p": 0.9`
	write(t, file, fmt.Sprintf(`{"eos_token_id": [%d], %s}`, ids[2], settings))
	got, temperature, finish, said := sample()
	if temperature != 1 || finish != "stop" || !slices.Equal(got, ids[:3]) {
		t.Errorf("%v at temperature %g ends by %q, want %v", got, temperature, finish, ids[:3])
	}
	for _, want := range []string{"temperature 0.5, at most 5 tokens",
		"typical_p = 0.9 is not supported and ignored"} {
		if !strings.Contains(said, want) {
			t.Errorf("the start says %q, not %q", said, want)
		}
	}
	text := func() string { // of the sample that was made last
		var s struct{ Text string }
		if err := json.Unmarshal([]byte(read(t, out)), &s); err != nil {
			t.Fatal(err)
		}
		return s.Text
	}
	ended := text()
	if sample("--max-tokens", "2"); text() != ended {
		t.Errorf("a sample that ends at an id has the text %q, without that id it is %q", ended, text())
	}
	if got, _, finish, _ := sample("--ignore-eos"); finish != "length" || !slices.Equal(got, ids[:5]) {
		t.Errorf("%v ends by %q, want %v", got, finish, ids[:5])
	}
	write(t, file, `{"do_sample": false, "temperature": 0.5}`)
	code, _, problems := lockstep(t, base...)
	line := read(t, out)
	if code != 0 || !strings.Contains(problems, "temperature 0\n") || !strings.Contains(line, `"temperature":0}`) {
		t.Errorf("greedy by the file: exit code %d, %s%s", code, problems, line)
	}
	greedy, _, _, _ := sample("--temperature", "0", "--max-tokens", "5")
	write(t, file, `{"min_p": 1}`) // none but the likeliest
	got, _, _, said = sample("--max-tokens", "5")
	if !slices.Equal(got, greedy) || !strings.Contains(said, "min-p 1\n") {
		t.Errorf("%v by min_p 1 of the file, %v are the likeliest; %s", got, greedy, said)
	}
	if got, _, _, _ := sample("--max-tokens", "5", "--min-p", "0"); !slices.Equal(got, ids[:5]) {
		t.Errorf("%v with --min-p 0, want %v", got, ids[:5])
	}
	write(t, file, `{"repetition_penalty": 100, "do_sample": false}`)
	got, _, _, _ = sample("--temperature", "0", "--max-tokens", "5")
	if all := slices.Concat(got, []int32{1, 2}); len(slices.Compact(slices.Sorted(slices.Values(all)))) != 7 {
		t.Errorf("%v has ids twice, or those of the prompt, by repetition_penalty of the file", got)
	}
}

// Arithmetic that flags ask for is used; threads and the instruction set change no bit.
func TestArithmeticFlags(t *testing.T) {
	dir := t.TempDir()
	in := write(t, filepath.Join(dir, "ids.jsonl"), "{\"ids\":[1,2,3,4,5,6,7]}\n")
	score := func(flags ...string) string {
		out := filepath.Join(dir, "scores")
		must(t, append([]string{"score", "--model", "model/testdata/qwen3", "--in", in, "--out", out}, flags...)...)
		return read(t, out)
	}
	plain, by := score(), map[string]string{}
	for _, flags := range [][]string{{}, {"--dtype", "bf16"}, {"--dtype", "bf16", "--dot", "tc16"},
		{"--exp2", "ex2h"}} {
		scores := score(flags...)
		if other, ok := by[scores]; ok {
			t.Errorf("%q gives the scores of [%s]", flags, other)
		}
		by[scores] = strings.Join(flags, " ")
	}
	if tc16 := score("--dot", "tc16"); by[tc16] != "--dtype bf16 --dot tc16" {
		t.Errorf("--dot tc16 alone has the scores of [%s]", by[tc16])
	}
	for _, flags := range [][]string{{"--threads", "1"}, {"--isa", "portable"}} {
		if score(flags...) != plain {
			t.Errorf("%q changes the scores", flags)
		}
	}
}

// A report is a page unless a picture alone is asked for.
func TestReportFiles(t *testing.T) {
	dir, run := trained(t)
	page, picture := filepath.Join(dir, "page.html"), filepath.Join(dir, "picture.svg")
	must(t, "report", run, "--svg", picture)
	if _, err := os.Stat("report.html"); !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(read(t, picture),
		"<svg") {
		t.Errorf("with --svg alone: a page (%v), picture %.20q", err, read(t, picture))
	}
	must(t, "report", run, "--svg", picture, "--out", page)
	if !strings.Contains(read(t, page), "<html") {
		t.Errorf("the page is %.100q", read(t, page))
	}
}

// The printed shape is one that resolves to itself.
func TestPrintConfig(t *testing.T) {
	once := must(t, append([]string{"train", shape, "--print-config"}, small...)...)
	again := must(t, "train", write(t, filepath.Join(t.TempDir(), "again.toml"), once), "--print-config")
	if once != again {
		t.Errorf("printed\n%s\nthen\n%s", once, again)
	}
}

// --version says what was built and by which arithmetic it computes.
func TestVersion(t *testing.T) {
	digest := "definition " + kernels.Default().Digest()
	out := must(t, "--version")
	if !strings.HasPrefix(out, "lockstep ") || !strings.Contains(out, digest) ||
		!strings.Contains(out, runtime.Version()) ||
		strings.Count(out, "\n") != 1 {
		t.Errorf("%q", out)
	}
	info := &debug.BuildInfo{GoVersion: "go1.99", Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: "arm64"}, {Key: "-tags", Value: "cuda"},
		{Key: "vcs.revision", Value: "c0ffee"}, {Key: "vcs.modified", Value: "true"},
	}}
	want := "lockstep v1.2.3, revision c0ffee with changes, " + digest + ", go1.99 linux/arm64, tags cuda"
	if got := version(info, true); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	info.Settings[4].Value = "false"
	if got := version(info, true); got != strings.Replace(want, " with changes", "", 1) {
		t.Errorf("%q", got)
	}
	if got := version(nil, false); got != "lockstep, unknown build, "+digest {
		t.Errorf("%q", got)
	}
}

func TestHelp(t *testing.T) {
	if out := must(t); !strings.Contains(out, "Usage:") {
		t.Errorf("without arguments: %s", out)
	}
	for _, name := range []string{"train", "score", "generate", "serve", "tokenize", "verify", "parity", "inspect",
		"shapes", "plan", "bench", "bench cpu", "bench rollout", "bench rl", "bench recompute", "bench stream",
		"devices"} {
		if out := must(t, append(strings.Fields(name), "--help")...); !strings.Contains(out, "Usage:\n  lockstep "+
			name) {
			t.Errorf("%s --help: %s", name, out)
		}
	}
}

func TestBadCommandLines(t *testing.T) {
	dir := t.TempDir()
	in, out := write(t, filepath.Join(dir, "in.jsonl"), "{\"ids\":[1]}\n"), filepath.Join(dir, "out")
	weights := write(t, filepath.Join(dir, "model.safetensors"), "weights")
	toml := write(t, filepath.Join(dir, "in.toml"), "name = \"x\"\n")
	for _, c := range []struct {
		words []string
		args  []string
	}{
		{[]string{"unknown command", `"tran"`, "train"}, []string{"tran"}},
		{[]string{"unknown command", `"gpu"`}, []string{"bench", "gpu"}},
		{[]string{"--prompt", "64..512"}, []string{"bench", "rollout", shape, "--prompt", "9..3"}},
		{[]string{"--updates 0"}, []string{"bench", "rl", shape, "--updates", "0"}},
		{[]string{"--kernels", "cpu"}, []string{"bench", "rollout", shape, "--kernels"}},
		{[]string{"--requests 0"}, []string{"bench", "rollout", shape, "--requests", "0"}},
		{[]string{"--stes", "--set"}, []string{"train", shape, "--stes", "run.steps=2"}},
		{[]string{"--modle", "--model"}, []string{"score", "--modle", "x"}},
		{[]string{"--in is missing"}, []string{"score", "--out", out, "--model", "x"}},
		{[]string{"SHAPE.toml"}, []string{"train"}},
		{[]string{"SHAPE.toml"}, []string{"train", "a", "b"}},
		{[]string{"DIR"}, []string{"inspect"}},
		{[]string{"--exp2", "--compile"}, []string{"devices", "--exp2", "poly"}},
		{[]string{"device cuda: "}, []string{"devices", "--compile", "sm_70"}},
		{[]string{"--machine is missing"}, []string{"plan", shape}},
		{[]string{`"9xH200"`, "8xH200", "bench machine"}, []string{"plan", shape, "--machine", "9xH200"}},
		{[]string{"in.toml", "device and card", "missing"}, []string{"plan", shape, "--machine", toml}},
		{[]string{"parallel.experts", "parallel.ranks (2)"}, []string{"plan", shape, "--machine", "2xH200", "--mesh",
			"ranks=2,experts=3"}},
		{[]string{"--machine 1xH200", "cuda", "cpu"}, []string{"train", shape, "--machine", "1xH200"}},
		{[]string{`--device "gpu"`}, []string{"bench", "machine", "--device", "gpu"}},
		{[]string{"--each 0s"}, []string{"bench", "machine", shape, "--each", "0s"}},
		{[]string{"8 ranks", "2xH200"}, []string{"plan", shape, "--machine", "2xH200", "--mesh", "ranks=8"}},
		{[]string{"qwen3-30b", "catalogue", "Qwen3-30B-A3B"}, []string{"shapes", "qwen3-30b"}},
		{[]string{"--set", "shape", "[parallel]"}, []string{"verify", "--model", "x", "--set", "run.steps=2"}},
		{[]string{"no.toml", "no such file"}, []string{"train", "no.toml"}},
		{[]string{"--model", "shape"}, []string{"verify"}},
		{[]string{"--model", "shape"}, []string{"verify", shape, "--model", "x"}},
		{[]string{"--address", "PORT"}, []string{"serve", "--model", "x", "--address", "localhost"}},
		{[]string{"--address", "HOST:PORT"}, []string{"serve", "--model", "x", "--address", ""}},
		{[]string{"--address", "HOST:PORT"}, []string{"serve", "--model", "x", "--address", ":0"}},
		{[]string{"0.0.0.0:0", "other machines", keyVariable, "--insecure"}, []string{"serve", "--model", "x",
			"--address", "0.0.0.0:0"}},
		{[]string{"nowhere: no config.json"}, []string{"serve", "--model", "nowhere", "--address", "0.0.0.0:0",
			"--insecure", "--log", "none"}},
		{[]string{"--tls-cert", "absent.pem"}, []string{"serve", "--model", "x", "--address", "127.0.0.1:0",
			"--tls-cert", filepath.Join(dir, "absent.pem")}},
		{[]string{"--log", "xml", "json"}, []string{"serve", "--model", "x", "--log", "xml"}},
		{[]string{"--drain", "more than 0"}, []string{"serve", "--model", "x", "--drain", "0s"}},
		{[]string{"--model is missing"}, []string{"serve"}},
		{[]string{"rollout", "slots"}, []string{"serve", "--model", "model/testdata/qwen3", "--address", "127.0.0.1:0",
			"--slots", "0"}},
		{[]string{"--n"}, []string{"generate", "--model", "x", "--in", in, "--out", out, "--n", "0"}},
		{[]string{"--max-tokens", "many"}, []string{"generate", "--model", "x", "--in", in, "--out", out,
			"--max-tokens", "many"}},
		{[]string{"--dtype", "fp17"}, []string{"score", "--model", "x", "--in", in, "--out", out, "--dtype", "fp17"}},
		{[]string{"no rule", "nothing", "split-k"}, []string{"verify", shape, "--break", "nothing"}},
		{[]string{"--rollout is missing"}, []string{"parity", "--model", "x"}},
		{[]string{"--against", "combin", "combine, dot"}, []string{"parity", "--model", "x", "--rollout", in,
			"--against", "combin=bf16"}},
		{[]string{"--against", "key_split 100", "multiple of 64"}, []string{"parity", "--model", "x", "--rollout", in,
			"--against", "key_split=100"}},
		{[]string{"--against", "weights", "int3", "fp8"}, []string{"parity", "--model", "x", "--rollout", in,
			"--against", "weights=int3"}},
		{[]string{"--against 2 times"}, []string{"parity", "--model", "x", "--rollout", in, "--against", "norm=bf16",
			"--against", "dot=fma"}},
		{[]string{"--tokens", "for a shape"}, []string{"parity", "--model", "x", "--rollout", in, "--tokens", "9"}},
		{[]string{"--against", "weights", "int3", "fp8"}, []string{"parity", shape, "--against", "weights=int3"}},
		{[]string{"--rollout", "leave it out"}, []string{"parity", shape, "--rollout", in}},
		{[]string{"nothing to compare with"}, []string{"parity", shape}},
		{[]string{"0 tokens"}, []string{"parity", shape, "--against", "weights=int4", "--tokens", "0"}},
		{[]string{"tpu", "cpu"}, []string{"train", shape, "--device", "tpu"}},
		{[]string{"tpu", "cpu"}, []string{"score", "--model", "x", "--in", in, "--out", out, "--device", "tpu"}},
		{[]string{"cuda", "this build"}, []string{"train", shape, "--device", "cuda"}},
		{[]string{"cuda", "this build"}, []string{"verify", shape, "--device", "cuda"}},
		{[]string{"cuda", "this build"}, []string{"verify", shape, "--set", "device.kind=cuda"}},
		{[]string{"instruction set", "sse", "avx2"}, []string{"score", "--model", "x", "--in", in, "--out", out,
			"--isa", "sse"}},
		{[]string{"-1 threads"}, []string{"score", "--model", "x", "--in", in, "--out", out, "--threads", "-1"}},
		{[]string{"dot mode", "fp8", "tc16"}, []string{"score", "--model", "x", "--in", in, "--out", out, "--dot",
			"fp8"}},
		{[]string{"run.stesp", "run.steps"}, []string{"train", shape, "--set", "run.stesp=2"}},
		{[]string{"run.steps", "two"}, []string{"train", shape, "--set", "run.steps=two"}},
		{[]string{"no/parent", "create it first"}, []string{"train", shape, "--out",
			filepath.Join(dir, "no/parent/run")}},
		{[]string{"--out", "is also the file of --in"}, []string{"score", "--model", "x", "--in", in, "--out",
			filepath.Join(dir, ".", "in.jsonl")}},
		{[]string{"--out", "is also the file of --in"}, []string{"generate", "--model", "x", "--in", in, "--out",
			in}},
		{[]string{"--out", "is also the file of --in"}, []string{"tokenize", "--model", "x", "--in", in, "--out",
			in}},
		{[]string{"--out is missing"}, []string{"score", "--model", "x", "--in", in, "--out", ""}},
		{[]string{"only flags", `"x"`, "score --help"}, []string{"score", "x"}},
		{[]string{"one argument at most"}, []string{"shapes", "a", "b"}},
		{[]string{"--adapter", "--model"}, []string{"verify", shape, "--adapter", "x"}},
		{[]string{"0 tokens", "want 1 to"}, []string{"verify", shape, "--tokens", "0"}},
		{[]string{"nowhere", "no run to replay"}, []string{"verify", "--replay", filepath.Join(dir, "nowhere")}},
		{[]string{"--n 100000000", "65536"}, []string{"generate", "--model", "x", "--in", in, "--out", out, "--n",
			"100000000"}},
		{[]string{"a file of the folder of --model"}, []string{"score", "--model", dir, "--in", in, "--out",
			weights}},
		{[]string{"--steps 0"}, []string{"bench", "cpu", shape, "--steps", "0"}},
		{[]string{"--each -1s"}, []string{"bench", "cpu", shape, "--each", "-1s"}},
		{[]string{"in.jsonl is not a folder", "--out"}, []string{"train", shape, "--out", in}},
		{[]string{"data.pack_rows", "at most 16777216"}, []string{"train", shape, "--set", "data.pack_rows=100000000"}},
		{[]string{"data.path", "absent.jsonl"}, []string{"train", shape, "--set", "data.task=", "--set", "data.path=" +
			filepath.Join(dir, "absent.jsonl")}},
	} {
		refused(t, dir, c.words, c.args...)
	}
}

// A shape with several mistakes names all of them with their lines, and the nearest known key.
func TestBadShape(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "bad.toml"),
		"[model]\nfamily = \"qwen3\"\ndtyp = \"fp32\"\n[optim]\nlr = -1\n[run]\nsteps = \"ten\"\n")
	code, out, problems := lockstep(t, "train", path, "--out", filepath.Join(dir, "run"))
	if code != 1 || out != "" || strings.Contains(problems, "goroutine") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, out, problems)
	}
	for _, w := range []string{"bad.toml:3", "dtyp", "dtype", "bad.toml:5", "lr", "bad.toml:7", "steps"} {
		if !strings.Contains(problems, w) {
			t.Errorf("%s wants %q", problems, w)
		}
	}
	for _, text := range []string{"[model\n", "= 1", "\x00", "\xff"} {
		refused(t, dir, []string{"bad.toml"}, "train", write(t, path, text), "--out", filepath.Join(dir, "run"))
	}
}

// header replaces the header of a safetensors file.
func header(t *testing.T, path string, change func(h string) string) {
	t.Helper()
	file := read(t, path)
	n := binary.LittleEndian.Uint64([]byte(file))
	h := change(file[8 : 8+n])
	write(t, path, string(binary.LittleEndian.AppendUint64(nil, uint64(len(h))))+h+file[8+n:])
}

func TestBadModels(t *testing.T) {
	dir, run := trained(t)
	whole := filepath.Join(run, "model")
	replace := func(name, old, new string) func(t *testing.T, m string) {
		return func(t *testing.T, m string) {
			path := filepath.Join(m, name)
			text := strings.Replace(read(t, path), old, new, 1)
			if text == read(t, path) {
				t.Fatalf("%s has no %q", name, old)
			}
			write(t, path, text)
		}
	}
	inHeader := func(old, new string) func(t *testing.T, m string) {
		return func(t *testing.T, m string) {
			header(t, filepath.Join(m, weights), func(h string) string {
				if !strings.Contains(h, old) {
					t.Fatalf("the header has no %q", old)
				}
				return strings.Replace(h, old, new, 1)
			})
		}
	}
	file := func(name, text string) func(t *testing.T, m string) {
		return func(t *testing.T, m string) { write(t, filepath.Join(m, name), text) }
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, m string)
		words  []string
	}{
		"no folder": {func(t *testing.T, m string) { os.RemoveAll(m) }, []string{"broken"}},
		"no config": {func(t *testing.T, m string) {
			os.Remove(filepath.Join(m, "config.json"))
		}, []string{"config.json"}},
		"empty config":   {file("config.json", ""), []string{"config.json"}},
		"config no JSON": {replace("config.json", ":", ""), []string{"config.json:"}},
		"config wrong type": {replace("config.json", `"hidden_size": 32`, `"hidden_size": "wide"`),
			[]string{"config.json", "hidden_size"}},
		"broken ends": {file("generation_config.json", `{"eos_token_id": "x"}`),
			[]string{"generation_config.json", "eos_token_id"}},
		"end beyond the vocabulary": {file("generation_config.json", `{"eos_token_id": [1, 480]}`),
			[]string{"generation_config.json", "eos_token_id", "480"}},
		"end of config.json beyond it": {replace("config.json", `"hidden_size": 32`,
			`"hidden_size": 32, "eos_token_id": 99999`), []string{"config.json", "eos_token_id", "99999", "480"}},
		"NaN": {func(t *testing.T, m string) {
			p := filepath.Join(m, weights)
			x := read(t, p)
			write(t, p, x[:len(x)-4]+"\x00\x00\xc0\x7f")
		}, []string{weights, "tensor ", "element [", "NaN"}},
		"broken sampling": {file("generation_config.json", `{"top_p": "x"}`), []string{"generation_config.json",
			"top_p"}},
		"unknown family": {replace("config.json", `"model_type": "qwen3_moe"`, `"model_type": "llama9"`),
			[]string{"config.json", "llama9", "qwen3"}},
		"other width": {replace("config.json", `"hidden_size": 32`, `"hidden_size": 64`),
			[]string{"model.embed_tokens.weight", "[480 32]", "[480 64]", "config.json"}},
		"one layer less": {replace("config.json", `"num_hidden_layers": 2`, `"num_hidden_layers": 1`),
			[]string{"model.layers.1.", "unexpected tensors", "config.json"}},
		"one layer more": {replace("config.json", `"num_hidden_layers": 2`, `"num_hidden_layers": 3`),
			[]string{"no tensor model.layers.2.", "config.json"}},
		"huge model": {replace("config.json", `"num_hidden_layers": 2`, `"num_hidden_layers": 99999999`),
			[]string{"config.json", "num_hidden_layers"}},
		"no weights": {func(t *testing.T, m string) {
			os.Remove(filepath.Join(m, weights))
		}, []string{"safetensors"}},
		"empty weights":       {file(weights, ""), []string{weights}},
		"seven bytes":         {file(weights, "1234567"), []string{weights}},
		"header past the end": {file(weights, "\xff\xff\xff\xff\xff\xff\xff\x7f{}"), []string{weights}},
		"header no JSON":      {file(weights, "\x02\x00\x00\x00\x00\x00\x00\x00{]"), []string{weights}},
		"truncated": {func(t *testing.T, m string) {
			p := filepath.Join(m, weights)
			x := read(t, p)
			write(t, p, x[:len(x)-4])
		}, []string{weights}},
		"half": {func(t *testing.T, m string) {
			p := filepath.Join(m, weights)
			x := read(t, p)
			write(t, p, x[:len(x)/2])
		}, []string{weights}},
		"bytes too many": {func(t *testing.T, m string) {
			p := filepath.Join(m, weights)
			write(t, p, read(t, p)+"more")
		}, []string{weights}},
		"overlapping": {inHeader(`"data_offsets":[0,`, `"data_offsets":[4,`), []string{weights}},
		"huge shape": {inHeader(`"shape":[480,32]`, `"shape":[9223372036854775807,9223372036854775807]`),
			[]string{weights, "model.embed_tokens.weight"}},
		"negative shape": {inHeader(`"shape":[480,32]`, `"shape":[-480,-32]`), []string{weights}},
		"unknown dtype":  {inHeader(`"dtype":"F32"`, `"dtype":"F13"`), []string{weights, "F13"}},
		"integers":       {inHeader(`"dtype":"F32"`, `"dtype":"I32"`), []string{weights, "I32"}},
		"name twice": {inHeader(`"model.norm.weight"`, `"model.embed_tokens.weight"`),
			[]string{weights, "model.embed_tokens.weight"}},
		"other name": {inHeader(`"model.norm.weight"`, `"model.gnome.weight"`),
			[]string{"no tensor model.norm.weight", "config.json"}},
		"index without shards": {func(t *testing.T, m string) {
			os.Remove(filepath.Join(m, weights))
			file("model.safetensors.index.json", `{"weight_map":{"a":"shard-1"}}`)(t, m)
		}, []string{"shard-1"}},
		"index no JSON": {func(t *testing.T, m string) {
			os.Remove(filepath.Join(m, weights))
			file("model.safetensors.index.json", `{`)(t, m)
		}, []string{"index.json"}},
		"index leaves": {func(t *testing.T, m string) {
			os.Remove(filepath.Join(m, weights))
			file("model.safetensors.index.json", `{"weight_map":{"a":"../../secret"}}`)(t, m)
		}, []string{"index.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			broken := filepath.Join(dir, "broken")
			if err := errors.Join(os.RemoveAll(broken), os.CopyFS(broken, os.DirFS(whole))); err != nil {
				t.Fatal(err)
			}
			c.change(t, broken)
			refused(t, dir, c.words, "score", "--model", broken, "--in", filepath.Join(dir, "ids.jsonl"), "--out",
				filepath.Join(dir, "scores"))
		})
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, m string)
		words  []string
	}{
		"empty":   {file("tokenizer.json", ""), []string{"tokenizer.json"}},
		"no JSON": {file("tokenizer.json", "{\"model\": ["), []string{"tokenizer.json"}},
		"another kind": {file("tokenizer.json", `{"version": "1.0", "model": {"type": "Unigram", "vocab": []}}`),
			[]string{"tokenizer.json", "Unigram"}},
		"none": {func(t *testing.T, m string) {
			os.Remove(filepath.Join(m, "tokenizer.json"))
		}, []string{"tokenizer.json"}},
		"broken template": {file("chat_template.jinja", "{% if %}"), []string{"chat_template.jinja"}},
	} {
		t.Run("tokenizer/"+name, func(t *testing.T) {
			broken := filepath.Join(dir, "broken")
			if err := errors.Join(os.RemoveAll(broken), os.CopyFS(broken, os.DirFS(whole))); err != nil {
				t.Fatal(err)
			}
			c.change(t, broken)
			in := write(t, filepath.Join(dir, "chat.jsonl"),
				"{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}\n")
			refused(t, dir, c.words, "generate", "--model", broken, "--in", in, "--out", filepath.Join(dir, "made"))
		})
	}
}

const weights = "model.safetensors"

// A weight that is NaN ends every command that loads it, by its name.
func TestNotFiniteWeights(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	in := write(t, at("in.jsonl"), "{\"ids\":[1,2,3]}\n")
	if err := os.CopyFS(at("model"), os.DirFS("model/testdata/qwen3")); err != nil {
		t.Fatal(err)
	}
	x := read(t, at("model/"+weights))
	write(t, at("model/"+weights), x[:len(x)-4]+"\xff\xff\xff\xff")
	tiny := write(t, at("tiny.toml"), "[model]\npath = '"+at("model")+"'\n[data]\npath = '"+in+"'\npack_rows = 16\n"+
		"[run]\nsteps = 1\npacks = 1\nverify_tokens = 0\n[optim]\nwarmup_steps = 0\n")
	for _, args := range [][]string{
		{"score", "--in", in, "--out", at("out")},
		{"score", "--in", in, "--out", at("out"), "--dtype", "bf16"},
		{"generate", "--in", in, "--out", at("out")},
		{"serve", "--address", "127.0.0.1:0"},
		{"verify", "--tokens", "100"},
		{"export", "--weights", "open", "--out", at("out")},
		{"merge", "--adapter", "model/testdata/adapters/qwen3", "--out", at("out")},
	} {
		refused(t, dir, []string{weights, "tensor model.", "NaN"}, append(args, "--model", at("model"))...)
	}
	code, out, problems := lockstep(t, "train", tiny, "--out", at("run")) // says first what it plans
	if _, err := os.Stat(at("run")); code != 1 || out != "" || !strings.Contains(problems, "NaN: fetch") || err == nil {
		t.Errorf("train: exit code %d, %s%s, %v", code, out, problems, err)
	}
}

func TestBadLines(t *testing.T) {
	dir, run := trained(t)
	model, in := filepath.Join(run, "model"), filepath.Join(dir, "in.jsonl")
	for _, c := range []struct {
		command string
		text    string
		words   []string
	}{
		{"score", "", []string{"in.jsonl:1", "empty"}},
		{"score", "{\"ids\":[1]}\n\n", []string{"in.jsonl:2", "empty"}},
		{"score", "{\"ids\":[1]}\n{\"ids\":[1,", []string{"in.jsonl:2", "JSON"}},
		{"score", "[1,2]\n", []string{"in.jsonl:1"}},
		{"score", "{\"ids\":[]}\n", []string{"in.jsonl:1", "at least"}},
		{"score", "{\"ids\":[1,480]}\n", []string{"in.jsonl:1", "ids[1] is 480", "480"}},
		{"score", "{\"ids\":[-1]}\n", []string{"in.jsonl:1", "ids[0] is -1"}},
		{"score", "{\"ids\":[1.5]}\n", []string{"in.jsonl:1", "ids"}},
		{"score", "{\"ids\":\"12\"}\n", []string{"in.jsonl:1", "ids"}},
		{"score", "{\"text\":\"12\"}\n", []string{"in.jsonl:1", "ids"}},
		{"score", "{\"ids\":[" + strings.Repeat("1,", 1024) + "1]}\n", []string{"in.jsonl:1", "1025", "1024"}},
		{"generate", "{\"prompt\":\"\"}\n", []string{"in.jsonl:1"}},
		{"generate", "{\"prompt\":7}\n", []string{"in.jsonl:1", "prompt"}},
		{"generate", "{\"prompt\":\"a\",\"ids\":[1]}\n", []string{"in.jsonl:1", "one of"}},
		{"generate", "{\"messages\":[]}\n", []string{"in.jsonl:1", "messages"}},
		{"generate", "{\"messages\":[{\"role\":\"user\"}]}\n", []string{"in.jsonl:1", "content"}},
		{"generate", "{\"ids\":[" + strings.Repeat("1,", 1024) + "1]}\n", []string{"in.jsonl:1", "1024"}},
		{"tokenize", "{\"txt\":\"a\"}\n", []string{"in.jsonl:1", "text"}},
		{"tokenize", "", []string{"in.jsonl:1", "empty"}},
	} {
		write(t, in, c.text)
		refused(t, dir, c.words, c.command, "--model", model, "--in", in, "--out", filepath.Join(dir, "out"))
	}
	for text, words := range map[string][]string{
		"":                  {"in.jsonl:1", "empty"},
		"{\"ids\":[1,2]}\n": {"in.jsonl:1", "prompt_ids"},
		"{\"prompt_ids\":[1],\"ids\":[1,2],\"logprobs\":[-1]}\n":                  {"in.jsonl:1", "2 tokens and 1"},
		"{\"prompt_ids\":[1],\"ids\":[480],\"logprobs\":[-1]}\n":                  {"in.jsonl:1", "ids[0] is 480"},
		"{\"prompt_ids\":[1],\"ids\":[2],\"logprobs\":[-1],\"temperature\":-1}\n": {"in.jsonl:1", "temperature -1"},
	} {
		write(t, in, text)
		refused(t, dir, words, "parity", "--model", model, "--rollout", in)
	}
	write(t, in, "{\"prompt_ids\":[1],\"ids\":[1],\"logprobs\":[-1]}\n")
	refused(t, dir, []string{"clip low 2"}, "parity", "--model", model, "--rollout", in, "--clip-low", "2")
	refused(t, dir, []string{"temperature 1e-09"}, "parity", "--model", model, "--rollout", in, "--temperature", "1e-9")
	write(t, in, "{\"ids\":[1,2]}\n")
	for _, command := range []string{"score", "generate"} {
		refused(t, dir, []string{"absent.jsonl"}, command, "--model", model, "--in", filepath.Join(dir, "absent.jsonl"),
			"--out", filepath.Join(dir, "out"))
		refused(t, dir, []string{"nowhere"}, command, "--model", model, "--in", in, "--out",
			filepath.Join(dir, "nowhere", "out"))
		refused(t, dir, []string{"run"}, command, "--model", model, "--in", in, "--out", run)
	}
	refused(t, dir, []string{"adapter_config.json"}, "score", "--model", model, "--adapter", model, "--in", in, "--out",
		filepath.Join(dir, "out"))
	adapter := filepath.Join(dir, "adapter")
	if err := os.CopyFS(adapter, os.DirFS("model/testdata/adapters/qwen3_moe")); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(adapter, "adapter_config.json")
	write(t, config, strings.Replace(read(t, config), `"r": 4`, `"r": 8`, 1))
	refused(t, dir, []string{"lora_A", "adapter_config.json wants [8 "}, "score", "--model", "model/testdata/qwen3_moe",
		"--adapter", adapter, "--in", in, "--out", filepath.Join(dir, "out"))
}

// A damaged checkpoint gives way to the one before it, and the run ends with the same bits.
func TestBadCheckpoints(t *testing.T) {
	dir, run := trained(t)
	again := append([]string{"train", shape, "--out", run}, small...)
	refused(t, dir, []string{"already has a run", "--resume"}, again...)
	again = append(again, "--resume")
	refused(t, dir, []string{"shape has changed"}, append(again, "--set=optim.lr=1e-4")...)
	want := read(t, filepath.Join(run, "model", weights))
	newest := filepath.Join(run, "checkpoints", "step-00000002")
	for _, name := range []string{"optimizer.safetensors", "model/" + weights, "state.json", "SHA256SUMS"} {
		path := filepath.Join(newest, name)
		text := read(t, path)
		write(t, path, text[:len(text)-5])
		if err := os.RemoveAll(filepath.Join(run, "model")); err != nil {
			t.Fatal(err)
		}
		code, _, problems := lockstep(t, again...)
		if code != 0 || !strings.Contains(problems, "is damaged") {
			t.Errorf("%s damaged: exit code %d, %s", name, code, problems)
		}
		if read(t, filepath.Join(run, "model", weights)) != want {
			t.Errorf("%s damaged: other bits", name)
		}
	}
}

// tokenize --chat shows what is learned of a line of messages, and names the line and the template where answers have
// no end.
func TestShowChat(t *testing.T) {
	dir, run := trained(t)
	model, in := filepath.Join(run, "model"), filepath.Join(dir, "chats.jsonl")
	const user = `{"role":"user","content":"Hi\u001b[2J"}`
	write(t, in, `{"prompt":"a","completion":"b"}`+"\n"+`{"messages":[`+user+
		`,{"role":"assistant","content":"Ho\nü"}]}`+"\n"+`{"messages":[`+user+`]}`+"\n")
	want := "<|im_start|>user\nHi\\x1b[2J<|im_end|>\n<|im_start|>assistant\n⟦Ho\nü<|im_end|>⟧\n"
	if got := must(t, "tokenize", "--model", model, "--in", in, "--chat", "--line", "2"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := must(t, "tokenize", "--model", model, "--in", in, "--chat"); got != "a⟦b<|im_end|>⟧\n" {
		t.Errorf("a completion is shown as %q", got)
	}
	refused(t, dir, []string{"chats.jsonl:3: no assistant message"}, "tokenize", "--model", model, "--in", in, "--chat",
		"--line", "3")
	refused(t, dir, []string{"has 3 lines"}, "tokenize", "--model", model, "--in", in, "--chat", "--line", "4")
	refused(t, dir, []string{"--out is missing"}, "tokenize", "--model", model, "--in", in)
	write(t, filepath.Join(model, "chat_template.jinja"), "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% "+
		"endfor %}{{ 'assistant: ' if add_generation_prompt }}")
	refused(t, dir, []string{"chats.jsonl:2:", "chat_template.jinja", "<|im_end|>", "user: b", "data.no_end"},
		"tokenize", "--model", model, "--in", in, "--chat", "--line", "2")
}
