package configs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const minimal = `[model]
family = "qwen3_moe"
tokenizer = "bytes"
dtype = "fp32"
config.hidden_size = 64
[data]
task = "countdown"
[run]
steps = 10
`

// problems are the lines of the error that a text and its overrides give.
func problems(t *testing.T, text string, set ...string) []string {
	t.Helper()
	s, err := Parse("s.toml", []byte(text), set)
	if err == nil {
		t.Fatalf("accepted: %+v", s)
	}
	return strings.Split(err.Error(), "\n")
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestMinimal(t *testing.T) {
	s, err := Parse("dir/mine.toml", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Run.Name != "mine" || s.Run.Out != "" || s.Optim.Beta2 != 0.95 || s.Model.Config["hidden_size"] != int64(64) {
		t.Errorf("resolved to %+v", s)
	}
}

func TestEveryViolationAtOnce(t *testing.T) {
	text := `# a shape
[model]
path = "x"
family = "qwen3"   # both
dtype = "fp16"
[optim]
lr = "fast"
beta1 = 1.0
bata2 = 0.9
[run]
steps = 5
epochs = 1
micro_batch = 9
seed = 1.5
[lora]
rank = 4
targets = []
[rollout]
top_p = 0
lr = 3
[zebra_crossing]
x = 1
`
	same(t, problems(t, text), []string{
		`s.toml: data.task: is missing, give task ("countdown"), path (a JSONL file) or preferences (a JSONL file ` +
			`of pairs)`,
		`s.toml:3: model.path: path (a checkpoint) and family (a new network) are both given, keep one`,
		`s.toml:4: model.family: a new network needs its sizes, add [model.config]`,
		`s.toml:5: model.dtype: is "fp16", want "auto", "fp32" or "bf16"`,
		`s.toml:7: optim.lr: is a string, want a number`,
		`s.toml:8: optim.beta1: is 1, want at least 0 and less than 1`,
		`s.toml:9: optim.bata2: unknown key, did you mean optim.beta2?`,
		`s.toml:11: run.steps: steps and epochs are both given, keep one`,
		`s.toml:13: run.micro_batch: micro_batch 9 is more than packs 8, lower it`,
		`s.toml:14: run.seed: is a float, want an integer`,
		`s.toml:16: lora.rank: adapters need targets or target_parameters, name at least one`,
		`s.toml:19: rollout.top_p: is 0, want more than 0 and at most 1`,
		`s.toml:20: rollout.lr: unknown key, did you mean optim.lr?`,
		`s.toml:21: zebra_crossing: unknown key, remove it`,
	})
}

func TestDefaultsAreWithinTheirRanges(t *testing.T) {
	Default() // panics otherwise
	for _, f := range schema {
		kind := f.typ.Kind()
		if kind == reflect.Slice {
			kind = f.typ.Elem().Kind()
		}
		numeric := kind == reflect.Int || kind == reflect.Float64
		if numeric != f.within.set {
			t.Errorf("%s: a number needs a range, nothing else has one", f.key)
		}
	}
}

func TestRuleKeysExist(t *testing.T) {
	for _, r := range rules {
		for _, key := range r.keys {
			if byKey[key] == nil {
				t.Errorf("a rule names %q", key)
			}
		}
	}
}

func TestContradictions(t *testing.T) {
	for set, want := range map[string]string{
		"model.path=x":                  "both given",
		"model.tokenizer=":              "needs a tokenizer",
		"model.config.model_type=qwen3": "contradicts family",
		"data.path=x":                   "keep one",
		"data.preferences=x":            "keep one",
		"dpo.beta=0.2":                  "set data.preferences or remove it",
		"dpo.beta=0":                    "more than 0",
		"dpo.label_smoothing=0.5":       "less than 0.5",
		"data.eval_path=x":              "makes its own",
		"data.task=":                    "is missing",
		"data.eval_samples=201":         "data.countdown.test is 200",
		"data.countdown.min_number=11":  "swap them",
		"data.countdown.operators=++":   "each once",
		"data.countdown.operators=":     "each once",
		"indexer.lr_factor=2":           "set indexer.stage",
		"indexer.stage=full":            `want "sparse" or "dense"`,
		"optim.warmup_steps=11":         "more than run.steps",
		"optim.warmup_ratio=1.1":        "at least 0 and at most 1",
		"run.epochs=1":                  "both given",
		"run.steps=0":                   "is missing",
		"run.micro_batch=9":             "more than packs",
		"run.name=a/b":                  "want letters",
		"rollout.pages=1":               "raise pages",
		"rollout.temperature=1e-9":      "so low that logits overflow",
		"rl.temperature=0":              "at least 0.01",
		"definition.dot=tc16":           "multiplies bf16",
		"definition.segment=100":        "multiple of 64",
		"definition.segment=32":         "definition.segment",
		"optim.lr=nan":                  "is NaN, want more than 0",
		"optim.lr=inf":                  "is +Inf, want more than 0",
		"optim.beta1=1":                 "at least 0 and less than 1",
		"rollout.top_p=1.01":            "more than 0 and at most 1",
		"run.packs=0":                   "at least 1",
		"run.packs=2.0":                 "is a float, want an integer",
		"run.recompute=yes":             `is "yes", want "auto", "full", "halves" or "none"`,
		"run.recompute=1":               `is "1", want "auto"`,
		"lora.targets=[1]":              "item 1: is an integer, want a string",
		"lora.targets=a,a":              "twice",
		"pipeline.blocks=7,b":           "item 2: is a string, want a number",
		"pipeline.blocks=[7.25, 4.75]":  "ends within a half of a block",
		"pipeline.blocks=7,0":           "item 2 is 0, want at least 0.5 and at most 65536",
		"pipeline.blocks=7,nan":         "item 2 is NaN, want at least 0.5 and at most 65536",
		"pipeline.blocks=true":          "is true or false, want a list of numbers",
		"run.stepz=3":                   "did you mean run.steps?",
		"optim.steps=3":                 "did you mean run.steps?",
		"run=3":                         "is a table",
		"run.steps":                     "has no value",
		"model.config.hidden_size.x=3":  "is an integer, want a table",
		"model.config.=1":               "has an empty key",
		`model.config.a={"" = 1}`:       "has an empty key",
		"model.config.rope_theta=inf":   "finite numbers only",
		"model.config.when=1979-05-27":  "has a date",
		"\xff=3":                        "not UTF-8",
	} {
		lines := problems(t, minimal, set)
		if len(lines) != 1 || !strings.Contains(lines[0], want) || !strings.HasPrefix(lines[0], "--set "+quoteFlag(set)+
			": ") {
			t.Errorf("%s: got %q, want one line with %q", set, lines, want)
		}
	}
	for set, want := range map[string]string{
		"rl.objective=grpo": "model samples",
		"data.path=y":       "keep one",
		"dpo.kind=ipo":      `does nothing with kind "ipo"`,
		"run.eval_every=1":  "nothing to evaluate on",
	} {
		if lines := problems(t, minimal, "data.task=", "data.preferences=x", "dpo.label_smoothing=0.1",
			"rl.reward=exact", set); len(lines) != 1 || !strings.Contains(lines[0], want) {
			t.Errorf("%s: got %q, want one line with %q", set, lines, want)
		}
	}
	for other, want := range map[string]string{"lora.rank=4": "does not work with LoRA adapters",
		"rl.objective=grpo": "only the indexers are trained"} {
		if lines := problems(t, minimal, "indexer.stage=dense", other); len(lines) != 1 ||
			!strings.Contains(lines[0], want) {
			t.Errorf("indexers that learn with %s: %q", other, lines)
		}
	}
	for _, c := range []struct {
		set  []string
		want string // "": nothing is wrong
	}{
		{[]string{"optim.warmup_steps=10"}, ""},
		{[]string{"optim.warmup_ratio=0.1", "optim.warmup_steps=1"}, "both given"},
		{[]string{"rl.objective=grpo", "rl.minibatches=4", "rl.epochs=2", "optim.warmup_steps=80"}, ""},
		{[]string{"rl.objective=grpo", "rl.minibatches=4", "rl.epochs=2", "optim.warmup_steps=81"},
			"80 optimizer steps"},
		{[]string{"rl.objective=grpo", "warm_start.steps=5", "warm_start.warmup_steps=6"},
			"more than warm_start.steps"},
		{[]string{"rl.objective=grpo", "warm_start.steps=5", "warm_start.warmup_steps=5",
			"warm_start.warmup_ratio=0.5"},
			"both given"},
	} {
		_, err := Parse("s.toml", []byte(minimal), c.set)
		if err == nil && c.want == "" {
			continue
		}
		if err == nil || c.want == "" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v, want one line with %q", c.set, err, c.want)
		}
	}
	lines := problems(t, minimal, "lora.rank=4", "lora.targets=")
	if len(lines) != 1 || !strings.Contains(lines[0], "name at least one") {
		t.Errorf("no targets: %q", lines)
	}
}

func TestOverrides(t *testing.T) {
	s, err := Parse("s.toml", []byte(minimal), []string{
		"run.name=7", `run.out="a b"`, "optim.lr=1e-3", "optim.eps=1", "lora.targets=q_proj,down_proj",
		`lora.target_parameters=["x"]`,
		"model.config.rope_scaling.rope_type=yarn", "model.config.num_experts=4", "run.steps=20", "run.steps=30",
		"data.countdown.style=", "run.recompute=true",
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.Run.Name != "7" || s.Run.Out != "a b" || s.Optim.LR != 1e-3 || s.Optim.Eps != 1 || s.Run.Steps != 30 ||
		s.Run.Recompute != "full" {
		t.Errorf("got %+v", s)
	}
	same(t, append(s.LoRA.Targets, s.LoRA.TargetParameters...), []string{"q_proj", "down_proj", "x"})
	want := map[string]any{"hidden_size": int64(64), "num_experts": int64(4),
		"rope_scaling": map[string]any{"rope_type": "yarn"}}
	if !reflect.DeepEqual(s.Model.Config, want) {
		t.Errorf("config %v", s.Model.Config)
	}
}

// A key that an override has mended takes part in the rules again, though its line in the file is still wrong.
func TestMendedKey(t *testing.T) {
	text := strings.Replace(minimal, "steps = 10", "steps = 0.5", 1)
	same(t, problems(t, text, "run.steps=5", "optim.warmup_steps=9"), []string{
		"s.toml:9: run.steps: is a float, want an integer",
		"--set optim.warmup_steps=9: optim.warmup_steps: warmup_steps 9 is more than run.steps 5, lower it",
	})
}

// A name is taken for a known one that differs in one or two letters of one word of four or more.
func TestMisspelt(t *testing.T) {
	known := []string{"num_hidden_layers", "head_dim", "rope_theta"}
	for name, want := range map[string]string{
		"num_hiden_layers": "num_hidden_layers", "rope_tehta": "rope_theta", "num_hiddn_layes": "",
		"heads_dim": "head_dim", "head_din": "",
		"num_hidden": "", "rope_theta": "", "rope_thingy": "",
	} {
		if got := Misspelt(name, known); got != want {
			t.Errorf("%s is taken for %q, want %q", name, got, want)
		}
	}
}

// Every string parses back to itself: TOML has no control characters, DEL among them.
func TestQuotedStrings(t *testing.T) {
	for r := rune(0); r < 0x180; r++ {
		text := "a" + string(r) + "b"
		if v, err := parseValue(quote(text)); err != nil || v != text {
			t.Errorf("%q is written as %s and read as %q (%v)", text, quote(text), v, err)
		}
	}
}

func TestLinesOfDottedKeysAndSubTables(t *testing.T) {
	text := `run.stepz = 1
"run" . 'packz' = """
x
"""
[ data . countdown ]
numbers = 99
trian = [
  1, # ]
  "]",
]
[lora]
seed = -1 # 'quote
inline = {a = "}", b = [1, {c = 2}]}
[[model.config.list]]
x = 1979-05-27 07:32:00
[model.config.list.y]
[optim]
lr = 0
`
	var places []string
	for _, line := range problems(t, text) {
		place, rest, _ := strings.Cut(line, ": ")
		key, _, _ := strings.Cut(rest, ": ")
		places = append(places, place+" "+key)
	}
	same(t, places, []string{
		"s.toml:1 run.stepz",
		"s.toml:1 run.steps",
		"s.toml:2 run.packz",
		"s.toml:5 data.task",
		"s.toml:6 data.countdown.numbers",
		"s.toml:7 data.countdown.trian",
		"s.toml:12 lora.seed",
		"s.toml:13 lora.inline",
		"s.toml:14 model.config",
		"s.toml:14 model.path",
		"s.toml:18 optim.lr",
	})
}

func TestSyntaxErrorHasItsLine(t *testing.T) {
	same(t, problems(t, "[run]\nsteps = 1\nsteps = 2\n"), []string{"s.toml:3: not TOML: Key 'run.steps' has already " +
		"been defined."})
	same(t, problems(t, "\xff\xfe"), []string{"s.toml: not TOML: the text is not UTF-8, fix its encoding"})
}

func TestShippedShapes(t *testing.T) {
	for file, set := range map[string][]string{
		"countdown-sft.toml": nil,
		"qwen3-lora.toml":    {"model.path=m", "data.path=d.jsonl"},
		"dpo-lora.toml":      {"model.path=m", "data.preferences=d.jsonl"},
	} {
		s, err := Load(file, set)
		if err != nil {
			t.Error(err)
			continue
		}
		roundTrip(t, s)
	}
	if _, err := Load("qwen3-lora.toml", nil); err == nil || !strings.Contains(err.Error(), "model.path") ||
		!strings.Contains(err.Error(), "data.task") {
		t.Errorf("a shape without model and data: %v", err)
	}
	if _, err := Load("none.toml", nil); err == nil || !strings.Contains(err.Error(), "none.toml") {
		t.Errorf("a missing file: %v", err)
	}
}

func roundTrip(t *testing.T, s *Shape) {
	t.Helper()
	text := s.TOML()
	again, err := Parse("printed.toml", text, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if !reflect.DeepEqual(s, again) {
		t.Fatalf("printed\n%s\nparses to\n%s", text, again.TOML())
	}
}

// TestPrintedShape holds the printed form against a file a person can read; UPDATE=1 rewrites it.
func TestPrintedShape(t *testing.T) {
	s, err := Parse("minimal.toml", []byte(minimal), nil)
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/minimal.printed.toml"
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, s.TOML(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != string(s.TOML()) {
		t.Errorf("printed\n%s\nwant %s", s.TOML(), golden)
	}
}

func FuzzShape(f *testing.F) {
	for _, file := range []string{"countdown-sft.toml", "qwen3-lora.toml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "model.path=x")
	}
	f.Add(minimal, `model.config."a.b".c=[1, {x = 2}]`)
	f.Add(fmt.Sprintf(published, "gpt-oss-20b"), "model.config.num_hidden_layers=3")
	f.Add(minimal+"name = 'q\u0001'\n", "data.countdown.style=\n")
	f.Add("a.b.c = '''x''''\n[x.\"y\"]\nz=[[1],{}]", "run.name=é")
	var unknown strings.Builder
	for i := range mostProblems + 2 {
		fmt.Fprintf(&unknown, "key%d = 1\n", i)
	}
	f.Add(unknown.String()+minimal, "run.name=many")
	more := regexp.MustCompile(`^and [1-9][0-9]* more$`)
	f.Fuzz(func(t *testing.T, text, flag string) {
		s, err := Parse("fuzz.toml", []byte(text), []string{flag})
		if err == nil {
			roundTrip(t, s)
			return
		}
		for i, line := range strings.Split(err.Error(), "\n") {
			if i == mostProblems && more.MatchString(line) {
				continue
			}
			if !strings.HasPrefix(line, "fuzz.toml") && !strings.HasPrefix(line, "--set ") {
				t.Errorf("not one line for each violation: %q", err)
			}
		}
	})
}

// "auto" is resolved by the device, and by what folders of a model and of an adapter name.
func TestResolveAuto(t *testing.T) {
	dir := t.TempDir()
	path, adapter := "model.path="+dir, []string{"lora.path=" + filepath.Join(dir, "adapter"), "model.path=" + dir}
	for file, text := range map[string]string{"config.json": `{"rope": 1, "lockstep": {"acts": "fp8x128"}}`,
		"adapter/adapter_config.json": `{"lockstep": {"acts": "none"}}`, "other/adapter_config.json": `{"r": 8}`} {
		file = filepath.Join(dir, file)
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		set  []string
		want string
	}{
		{nil, "fp32 fma poly"},
		{[]string{"device.kind=cuda"}, "bf16 tc16 ex2h"},
		{[]string{"device.kind=cuda", "definition.exp2=poly"}, "bf16 tc16 poly"},
		{[]string{"definition.dot=tc16"}, "bf16 tc16 poly"},
		{[]string{"definition.acts=fp8x128", "model.weights=fp8"}, "bf16 tc16 poly"},
		{[]string{"model.dtype=bf16"}, "bf16 fma poly"},
		{[]string{path}, "bf16 tc16 poly"},
		{[]string{path, "definition.acts=none"}, "fp32 fma poly"},
		{[]string{path, "lora.path=" + filepath.Join(dir, "other")}, "bf16 tc16 poly"},
		{adapter, "fp32 fma poly"},
		{[]string{"model.path=" + filepath.Join(dir, "none")}, "fp32 fma poly"},
	} {
		text := minimal
		if strings.Contains(strings.Join(c.set, " "), "model.path") {
			text = "[data]\npath = \"x.jsonl\"\n[run]\nsteps = 10\n"
		}
		s, err := Parse("s.toml", []byte(text), append([]string{"model.dtype=auto"}, c.set...))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Model.DType + " " + s.Definition.Dot + " " + s.Definition.Exp2; got != c.want {
			t.Errorf("%v: %s, want %s", c.set, got, c.want)
		}
	}
}

// A command without a shape takes the keys of [parallel] and no others, by the rules of a shape.
func TestParseParallel(t *testing.T) {
	got, err := ParseParallel([]string{"parallel.ranks=4", "parallel.experts=4", "parallel.weights=sharded"})
	want := Parallel{Ranks: 4, Weights: "sharded", Experts: 4, Context: 1, Stages: 1, Interleave: 1}
	if err != nil || got != want {
		t.Errorf("%+v, error %v, want %+v", got, err, want)
	}
	if got, err := ParseParallel(nil); err != nil || got != Default().Parallel {
		t.Errorf("%+v, error %v", got, err)
	}
	for flag, want := range map[string]string{
		"run.steps=2":          "--set run.steps=2: run.steps: without a shape only keys of [parallel] can be set",
		"parallel=2":           "--set parallel=2: parallel: without a shape only keys of [parallel] can be set",
		"parallel.ranks=-1":    "parallel.ranks: is -1, want",
		"parallel.rank=2":      "parallel.rank: ",
		"parallel.ranks":       "has no value",
		"parallel.experts=3":   "parallel.experts: want 1, or parallel.ranks (1), or 0 for all",
		"parallel.weights=cut": "parallel.weights: ",
		"parallel.context=0":   "parallel.context: divides the packs of a training step, remove it",
		"parallel.stages=0":    "parallel.stages: divides the blocks of a training step, remove it",
	} {
		if _, err := ParseParallel([]string{flag}); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", flag, err, want)
		}
	}
}
