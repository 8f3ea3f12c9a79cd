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
	"time"

	"lockstep/configs"
	"lockstep/data"
	"lockstep/optim"
	"lockstep/train/bench"
	"lockstep/train/report"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// countdownPairs writes preferences: right answers to countdown, and the same with "/" as their last operator, which
// the task lacks. The task's judge says so too.
func countdownPairs(t *testing.T, path string, split data.Split, n int) string {
	t.Helper()
	task := data.Countdown{Numbers: 3, MinNumber: 1, MaxNumber: 25, MaxTarget: 100, Operators: "+-*", Style: "meet",
		Train: 1000, Test: 1000, Seed: 1}
	var text strings.Builder
	for i := range n {
		e := task.Example(split, i)
		at := strings.LastIndexAny(e.Completion, task.Operators)
		wrong := e.Completion[:at] + "/" + e.Completion[at+1:]
		if task.Reward(split, i, e.Completion) != 1 || task.Reward(split, i, wrong) != 0 {
			t.Fatalf("%q and %q are not right and wrong", e.Completion, wrong)
		}
		line, err := json.Marshal(map[string]string{"prompt": e.Prompt, "chosen": e.Completion, "rejected": wrong})
		if err != nil {
			t.Fatal(err)
		}
		text.Write(append(line, '\n'))
	}
	return writeText(t, path, text.String())
}

func writeText(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tinyPairs converts the tiny shape to a run over pairs, with other pairs held out.
func tinyPairs(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	return []string{
		"data.task=", "data.preferences=" + countdownPairs(t, filepath.Join(dir, "pairs.jsonl"), data.Train, 60),
		"data.eval_path=" + countdownPairs(t, filepath.Join(dir, "held.jsonl"), data.Test, 20),
		"data.eval_samples=12", "data.pack_rows=256", "optim.lr=1e-3", "optim.warmup_steps=1", "run.steps=6",
	}
}

func readBytes(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What does not belong to the definition changes no bit of a run over pairs, nor of its reference.
func TestPreferenceSameBits(t *testing.T) {
	pairs := slices.Clip(append(tinyPairs(t), "run.steps=3", "run.save_every=0"))
	for _, base := range [][]string{
		append(pairs, "model.dtype=fp32"),
		append(pairs, "model.dtype=bf16", "definition.dot=tc16"),
		append(pairs, "model.dtype=bf16", "lora.rank=4", "lora.target_parameters=mlp.experts.down_proj",
			"dpo.kind=ipo"),
	} {
		whole := filepath.Join(t.TempDir(), "run")
		want, err := runTiny(t, whole, false, base...)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range [][]string{{"run.micro_batch=3"},
			{"run.micro_batch=4", "run.recompute=true", "device.threads=2"}} {
			out := filepath.Join(t.TempDir(), "run")
			got, err := runTiny(t, out, false, append(base, set...)...)
			if err != nil || got != want {
				t.Errorf("%v %v: %s, want %s (%v)", base[len(pairs):], set, got, want, err)
				continue
			}
			if readBytes(t, filepath.Join(out, referenceFile)) != readBytes(t, filepath.Join(whole, referenceFile)) {
				t.Errorf("%v %v: another reference", base[len(pairs):], set)
			}
		}
		if got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, "dpo.beta=0.11")...); err !=
			nil || got == want {
			t.Errorf("%v: another beta gives the same bits: the test cannot fail (%v)", base[len(pairs):], err)
		}
	}
}

// The reference of a run with adapters is that of a run without: at the start they add nothing, on the bit.
func TestReferenceIgnoresAdapters(t *testing.T) {
	pairs := append(tinyPairs(t), "run.steps=1", "optim.warmup_steps=0")
	for _, base := range [][]string{{"model.dtype=fp32"}, {"model.dtype=bf16", "definition.dot=tc16"}} {
		base = append(pairs, base...)
		plain, adapted := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, plain, false, base...); err != nil {
			t.Fatal(err)
		}
		if _, err := runTiny(t, adapted, false, append(base, "lora.rank=4",
			"lora.target_parameters=mlp.experts.down_proj")...); err != nil {
			t.Fatal(err)
		}
		if readBytes(t, filepath.Join(plain, referenceFile)) != readBytes(t, filepath.Join(adapted, referenceFile)) {
			t.Errorf("%v: adapters change the reference", base[len(pairs):])
		}
		other := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, other, false, append(base, "model.init_seed=2")...); err != nil {
			t.Fatal(err)
		}
		if readBytes(t, filepath.Join(plain, referenceFile)) == readBytes(t, filepath.Join(other, referenceFile)) {
			t.Errorf("%v: other weights give the same reference: the test cannot fail", base[len(pairs):])
		}
	}
}

// A run in one process and one forward a step says what two models would: the weights of step 1, taken as the start of
// another run, give the log-probabilities of step 2, and rewards are beta times what they gained over those of step 1.
func TestPreferenceAgainstTwoModels(t *testing.T) {
	// a step takes all pairs
	pairs := append(tinyPairs(t), "data.pack_rows=8192", "run.packs=1", "run.steps=2", "dpo.beta=0.5")
	first, second := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, first, false, pairs...); err != nil {
		t.Fatal(err)
	}
	start := filepath.Join(first, checkpointsDir, checkpointName(1), weightsDir)
	s, err := configs.Parse("second.toml", []byte("[model]\npath = '"+start+"'\n[run]\npacks = 1\nsteps = "+
		"1\nverify_tokens = 0\n"), append(pairs[1:3:3], "data.pack_rows=8192"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := Run(context.Background(), s, Options{Out: second, Log: log}); err != nil {
		t.Fatal(err)
	}
	one, two := readRecords(t, first), readRecords(t, second)
	near := func(what string, got, want float64) {
		t.Helper()
		if math.IsNaN(got) || math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) {
			t.Errorf("%s: %.17g, want %.17g", what, got, want)
		}
	}
	a, b, other := one[0], one[1], two[0]
	near("log-probability of chosen answers", float64(*b.ChosenLogProb), float64(*other.ChosenLogProb))
	near("of rejected answers", float64(*b.RejectedLogProb), float64(*other.RejectedLogProb))
	near("chosen reward", float64(*b.ChosenReward), 0.5*float64(*other.ChosenLogProb-*a.ChosenLogProb))
	near("rejected reward", float64(*b.RejectedReward), 0.5*float64(*other.RejectedLogProb-*a.RejectedLogProb))
	near("margin", float64(*b.Margin), float64(*b.ChosenReward-*b.RejectedReward))
	near("margin before the first update", float64(*a.Margin), 0)
	if math.Abs(float64(*a.Loss)-math.Ln2) > 1e-6 || *b.Margin <= 0 || *b.Loss >= *a.Loss {
		t.Errorf("loss %g, then %g at a margin of %g; want ln 2, then less", float64(*a.Loss), float64(*b.Loss),
			float64(*b.Margin))
	}
}

func readRecords(t *testing.T, out string) []runlog.Record {
	t.Helper()
	records, err := runlog.ReadMetrics(out)
	if err != nil || len(records) == 0 {
		t.Fatalf("%d records (%v)", len(records), err)
	}
	return records
}

// By the shape that users start from, a small model learns which answers are right, also of instances that it never
// saw.
func TestPreferenceLearns(t *testing.T) {
	dir := t.TempDir()
	start, out := filepath.Join(dir, "start"), filepath.Join(dir, "run")
	if _, err := runTiny(t, start, false, "run.steps=4"); err != nil {
		t.Fatal(err)
	}
	s, err := configs.Load("../configs/dpo-lora.toml", []string{
		"model.path=" + filepath.Join(start, "model"), "data.preferences=" + countdownPairs(t,
			filepath.Join(dir, "pairs.jsonl"), data.Train, 300),
		"data.eval_path=" + countdownPairs(t, filepath.Join(dir, "held.jsonl"), data.Test, 50), "data.pack_rows=256",
		"optim.lr=1e-2", "run.packs=4", "run.epochs=2", "run.eval_every=6",
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
		t.Fatal(err)
	}
	var evals []runlog.Record
	records := readRecords(t, out)
	for _, r := range records {
		if r.EvalSamples > 0 {
			evals = append(evals, r)
		}
	}
	last, end := evals[len(evals)-1], records[len(records)-1]
	if *end.Preferred < 0.9 || *end.ChosenReward <= *end.RejectedReward || last.EvalSamples != 50 ||
		*last.EvalAccuracy < 0.95 || *last.EvalMargin < 1.5**evals[0].EvalMargin || *last.EvalLoss > 0.6 {
		t.Errorf("the model did not learn to prefer right answers:\n%s", readBytes(t, filepath.Join(dir, "log")))
	}
	report := readBytes(t, filepath.Join(out, report.ReportFile))
	for _, words := range []string{">Margin<", ">Rewards<", ">Log-probabilities<",
		">chosen answer has the higher reward<", ">per pair<", "held-out margin"} {
		if !strings.Contains(report, words) {
			t.Errorf("the report lacks %q", words)
		}
	}
}

// The chosen answer of a pair comes first: the right one, which has no "/". A run that took them the wrong way round in
// training and held out alike would find that it learns well.
func TestPairSamples(t *testing.T) {
	tok, err := data.NewChatTokenizer("countdown")
	if err != nil {
		t.Fatal(err)
	}
	o := data.Options{Codec: tok, Template: tok.Template, End: tok.End, Vocab: 480, MaxRows: 256, PairRows: 256}
	o.Long = data.LongError
	p, err := data.LoadPreferences(countdownPairs(t, filepath.Join(t.TempDir(), "pairs.jsonl"), data.Train, 5), o)
	if err != nil {
		t.Fatal(err)
	}
	list := pairSamples(p, 4)
	for i, l := range list {
		if text := tok.Decode(l.IDs); strings.Contains(text, "/") != (i%2 == 1) {
			t.Errorf("answer %d of pair %d is %q", i%2, i/2, text)
		}
	}
	if len(list) != 8 {
		t.Errorf("%d answers of 4 pairs", len(list))
	}
}

// Every family learns to prefer some noise to other noise, by the same bits in micro-batches.
func TestPreferenceFamilies(t *testing.T) {
	eachFamily(t, func(t *testing.T, dir string, vocab int) {
		var lines strings.Builder
		texts := noise(vocab)
		for i := 0; i+1 < len(texts); i += 2 {
			a, b := texts[i], texts[i+1]
			line, err := json.Marshal(map[string][]int32{"prompt_ids": a[:4], "chosen_ids": a[4:12],
				"rejected_ids": b[4:]})
			if err != nil {
				t.Fatal(err)
			}
			lines.Write(append(line, '\n'))
		}
		work := t.TempDir()
		var ends []string
		for _, micro := range []int{1, 2} {
			out := filepath.Join(work, fmt.Sprint(micro))
			shape := fmt.Appendf(nil, families, dir, writeText(t, filepath.Join(work, "pairs.jsonl"), lines.String()),
				micro)
			s, err := configs.Parse("families.toml", shape, nil)
			if err != nil {
				t.Fatal(err)
			}
			log, err := os.Create(filepath.Join(work, "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			if err := Run(context.Background(), s, Options{Out: out, Log: log}); err != nil {
				t.Fatal(err)
			}
			if r := readRecords(t, out); *r[len(r)-1].Preferred != 1 || *r[len(r)-1].Margin < 0.1 {
				t.Errorf("prefers %.0f%% of pairs, margin %g", 100*float64(*r[len(r)-1].Preferred),
					float64(*r[len(r)-1].Margin))
			}
			ends = append(ends, checkpointDigest(t, out))
		}
		if ends[0] != ends[1] {
			t.Errorf("micro-batches: %s, want %s", ends[1], ends[0])
		}
	})
}

// families is two packs of two pairs a step.
const families = `
[model]
path = "%s"
[data]
preferences = "%s"
pack_rows = 72
[optim]
lr = 1e-3
[run]
steps = 8
packs = 2
micro_batch = %d
verify_tokens = 0
`

// A reference that is torn, foreign or of something else is refused in one line before anything is written; one that is
// gone is computed again, to the same bits.
func TestReferenceRefusals(t *testing.T) {
	pairs := append(tinyPairs(t), "run.steps=3")
	out := filepath.Join(t.TempDir(), "run")
	want, err := runTiny(t, out, false, pairs...)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(out, referenceFile)
	whole := readBytes(t, path)
	flipped := []byte(whole)
	flipped[len(flipped)-5] ^= 1
	foreign := filepath.Join(out, checkpointsDir, checkpointName(3), optimizerFile)
	dir := t.TempDir()
	for _, c := range []struct {
		text string
		set  []string
		want string
	}{
		{whole[:len(whole)/2], nil, "damaged"},
		{whole[:3], nil, "damaged"},
		{"", nil, "damaged"},
		{string(flipped), nil, "different checksum"},
		{readBytes(t, foreign), nil, "not a reference"},
		{whole, []string{"model.init_seed=2"}, "computed from other weights"},
		{whole, []string{"model.dtype=bf16"}, "computed from other weights"},
		{whole, []string{"definition.exp2=ex2h"}, "another definition"},
		{whole, []string{"data.preferences=" + countdownPairs(t, filepath.Join(dir, "p"), data.Train, 59)},
			"belongs to other pairs"},
		{whole, []string{"data.eval_path=" + countdownPairs(t, filepath.Join(dir, "h"), data.Test, 21)},
			"belongs to other held-out pairs"},
		{whole, []string{"data.eval_samples=11"}, "belongs to other held-out pairs"},
		{whole, []string{"dpo.beta=0.2"}, "the shape has changed"},
	} {
		writeText(t, path, c.text)
		before := readBytes(t, filepath.Join(out, runlog.ShapeFile))
		_, err := runTiny(t, out, true, append(pairs, c.set...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v, want one line with %q", c.set, err, c.want)
		}
		if readBytes(t, path) != c.text || readBytes(t, filepath.Join(out, runlog.ShapeFile)) != before {
			t.Errorf("%v: something was written", c.set)
		}
	}
	for _, text := range []string{whole, ""} { // "": removed
		if text == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else {
			writeText(t, path, text)
		}
		if got, err := runTiny(t, out, true, pairs...); err != nil || got != want || readBytes(t, path) != whole {
			t.Errorf("resumed: %s, want %s (%v)", got, want, err)
		}
	}
}

// Being asked to stop while the reference is computed writes nothing.
func TestReferenceInterrupted(t *testing.T) {
	s, err := testshape.Parse(tinyPairs(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	out := filepath.Join(t.TempDir(), "run")
	if err := Run(ctx, s, Options{Out: out, Log: log}); err == nil ||
		!strings.Contains(err.Error(), "at pair 0 of 72") || runlog.HasRun(out) {
		t.Errorf("error %v", err)
	}
}

// A step over pairs needs no more memory than the plan, which has no pairs, says.
func TestPreferenceReserved(t *testing.T) {
	err := ready(t, true, func(d *limited, tr *trainer.Trainer) {
		objective, err := optim.New("dpo", optim.Settings{})
		if err != nil {
			t.Fatal(err)
		}
		tr.Objective = objective
		before := d.pieces
		for _, rows := range [][]int{slices.Repeat([]int{128}, 8), append(slices.Repeat([]int{128}, 7), 127),
			slices.Repeat([]int{1}, 1024), {2, 1}} {
			var pack []trainer.Sample
			for _, n := range rows {
				l := trainer.Sample{Sample: data.Sample{IDs: make([]int32, n), Targets: make([]int32, n)}}
				l.Reference = make([]float32, len(l.IDs))
				pack = append(pack, l.WithWeight(1))
			}
			tr.Step(1, trainer.GlobalBatch{Packs: [][]trainer.Sample{pack, pack, pack, pack}, Scale: 1})
		}
		if d.pieces != before {
			t.Errorf("steps asked for memory %d times", d.pieces-before)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The benchmark says that it has no use for pairs.
func TestBenchRefusesPairs(t *testing.T) {
	s, err := testshape.Parse(tinyPairs(t))
	if err != nil {
		t.Fatal(err)
	}
	err = bench.CPU(context.Background(), s, bench.Options{Steps: 1, Each: time.Millisecond, Out: os.Stderr})
	if err == nil || !strings.HasPrefix(err.Error(), "data.preferences: ") {
		t.Errorf("error %v", err)
	}
}
