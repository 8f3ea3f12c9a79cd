package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// tinyRL converts the tiny shape to a run of reinforcement learning.
// Rollout and trainer agree on every bit of every sampled token, and whatever does not belong to the definition changes
// no bit of the result: how many sequences the engine runs at a time, its pages, micro-batches, recompute, threads.
func TestLearnSameBits(t *testing.T) {
	for objective, isa := range map[string]string{"grpo": "portable", "gspo": "auto"} {
		base := append(testshape.RL(), "rl.objective="+objective, "rl.minibatches=2", "rl.epochs=2",
			"run.save_every=0")
		whole := filepath.Join(t.TempDir(), "run")
		want, err := runTiny(t, whole, false, base...)
		if err != nil {
			t.Fatal(err)
		}
		exact(t, whole)
		for _, set := range [][]string{
			{"rollout.slots=1", "run.micro_batch=3", "device.isa=" + isa},
			{"rollout.slots=64", "rollout.page_rows=3", "device.threads=2"},
			{"rollout.slots=8", "rollout.pages=24", "rollout.page_rows=4", "rollout.prefill_rows=5",
				"run.recompute=true"},
		} {
			out := filepath.Join(t.TempDir(), "run")
			got, err := runTiny(t, out, false, append(base, set...)...)
			if err != nil || got != want {
				t.Errorf("%s %v: %s, want %s (%v)", objective, set, got, want, err)
				continue
			}
			if episodes(t, out) != episodes(t, whole) {
				t.Errorf("%s %v: other answers", objective, set)
			}
		}
		if got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, "rollout.seed=2")...); err !=
			nil || got == want {
			t.Errorf("other samples give the same bits: the test cannot fail (%v)", err)
		}
	}
}

// exact wants every step of a run to have compared tokens without a difference, and groups to hold different answers.
func exact(t *testing.T, out string) {
	t.Helper()
	records, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, r := range records {
		if r.Reward == nil {
			continue
		}
		steps++
		if r.Compared == 0 || r.Differ != 0 || *r.KL != 0 || *r.KLK1 != 0 || *r.KLExact != 0 || *r.LargestGap != 0 {
			t.Errorf("step %d: %d of %d tokens differ, KL %g, over the vocabulary %g",
				r.Step, r.Differ, r.Compared, float64(*r.KL), float64(*r.KLExact))
		}
		if first := firstUpdate(r); first.ClipFraction != 0 || first.ApproxKL != 0 || first.Ratio != 1 {
			t.Errorf("step %d: the first update, by the policy that sampled, has %+v", r.Step, first)
		}
	}
	if steps != 6 {
		t.Errorf("%d steps of reinforcement learning", steps)
	}
	texts, alike := map[int]map[string]bool{}, 0
	if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
		if texts[e.Asked] == nil {
			texts[e.Asked] = map[string]bool{}
		}
		texts[e.Asked][e.Text] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, set := range texts {
		if len(set) == 1 {
			alike++
		}
	}
	if 2*alike > len(texts) {
		t.Errorf("%d of %d groups hold one answer again and again", alike, len(texts))
	}
}

// firstUpdate is that of a step of reinforcement learning.
func firstUpdate(r runlog.Record) runlog.UpdateRecord {
	if len(r.ByUpdate) > 0 {
		return r.ByUpdate[0]
	}
	return runlog.UpdateRecord{Loss: *r.Loss, GradNorm: *r.GradNorm, ClipFraction: *r.ClipFraction,
		ApproxKL: *r.ApproxKL,
		Ratio:    *r.Ratio}
}

// Numerics of their own make rollouts differ, which the metrics show; they are refused without leave.
func TestMismatch(t *testing.T) {
	for _, numerics := range []string{"weights=fp8", "combine=bf16", "router=bf16", "norm=bf16"} {
		set := append(testshape.RL(), "rollout.numerics."+numerics)
		if s, err := testshape.Parse(set); err == nil || s != nil || !strings.Contains(err.Error(), "allow_mismatch") {
			t.Errorf("%s: %v", numerics, err)
		}
		out := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, out, false, append(set, "rollout.allow_mismatch=true", "run.steps=2")...); err != nil {
			t.Fatal(err)
		}
		records, err := runlog.ReadMetrics(out)
		if err != nil {
			t.Fatal(err)
		}
		last := records[len(records)-1]
		if last.Differ == 0 || *last.KL <= 0 || *last.KLExact <= 0 || math.IsInf(float64(*last.KL), 0) {
			t.Errorf("%s: %d of %d tokens differ, KL %g, over the vocabulary %g", numerics, last.Differ, last.Compared,
				float64(*last.KL), float64(*last.KLExact))
		}
		if first := firstUpdate(last); first.Ratio == 1 || first.ApproxKL <= 0 {
			t.Errorf("%s: the first update has a ratio of exactly 1 to the rollout: %+v", numerics, first)
		}
	}
}

// With rl.proximal ratios are to the trainer's own log-probabilities: exactly 1 in the first update, though the rollout
// differs, and on all of a step's minibatches before the first update.
func TestProximal(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, append(testshape.RL(), "rollout.numerics.weights=fp8",
		"rollout.allow_mismatch=true",
		"rl.proximal=true", "rl.importance_cap=1.001", "rl.minibatches=2", "run.steps=2")...); err != nil {
		t.Fatal(err)
	}
	for _, r := range readRecords(t, out) {
		if r.Reward == nil {
			continue
		}
		first, second := r.ByUpdate[0], r.ByUpdate[1]
		apart := second.Ratio != 1 && second.ApproxKL > 0
		if *r.KL <= 0 || first.Ratio != 1 || first.ApproxKL != 0 || !apart || *r.Corrected <= 0 {
			t.Errorf("step %d: KL %g, corrected %g, updates %+v", r.Step, float64(*r.KL), float64(*r.Corrected),
				r.ByUpdate)
		}
	}
}

// With stale answers every token carries the version of the weights that chose it, and none is older than is allowed,
// however many updates a step has.
func TestStale(t *testing.T) {
	for _, c := range []struct {
		set                []string
		perStep, staleness int
	}{
		{[]string{"rl.staleness=2", "rollout.slots=20"}, 1, 2},
		{[]string{"rl.staleness=5", "rl.minibatches=2", "rollout.slots=20"}, 2, 5},
		{[]string{"rl.staleness=4", "rl.minibatches=2", "rl.epochs=2", "rollout.slots=5"}, 4, 4},
	} {
		out := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, out, false, slices.Concat(testshape.RL(), []string{"run.steps=6"}, c.set)...); err !=
			nil {
			t.Fatal(err)
		}
		records, err := runlog.ReadMetrics(out)
		if err != nil {
			t.Fatal(err)
		}
		exactly := 0 // steps whose KL is known over the vocabulary
		for _, r := range records {
			if r.KLExact != nil {
				exactly++
			}
			if r.Reward != nil && (r.Differ != 0 || r.KLExact != nil && *r.KLExact != 0) {
				t.Errorf("%v, step %d: %d of %d tokens of the present weights differ, KL over the vocabulary %v", c.set,
					r.Step, r.Differ, r.Compared, r.KLExact)
			}
		}
		if exactly < 3 {
			t.Errorf("%v: %d of 6 steps compared logits", c.set, exactly)
		}
		mixed, oldest := 0, 0
		if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
			now := (e.Step - 7) * c.perStep // updates before the step
			first, last := e.Versions[0], e.Versions[len(e.Versions)-1]
			if last > now || first < now-c.staleness || !slices.IsSorted(e.Versions) {
				t.Errorf("%v: step %d learns at version %d from tokens of versions %v", c.set, e.Step, now, e.Versions)
			}
			oldest = max(oldest, now-first)
			if first != last {
				mixed++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if most := c.staleness / c.perStep * c.perStep; mixed == 0 || oldest != most { // whole steps
			t.Errorf("%v: %d answers span an update, the oldest token is of %d updates ago, want %d", c.set, mixed,
				oldest, most)
		}
	}
}

// A replay scores every recorded token to the recorded bits, by the version that chose it, and comes to the run's
// checkpoints. A log-probability, an answer or a checkpoint that was touched is found.
func TestReplay(t *testing.T) {
	for name, set := range map[string][]string{
		"on policy": {"rl.minibatches=2", "rl.epochs=2"},
		"stale":     {"rl.staleness=2", "rollout.slots=20", "rl.temperature=0.6"},
		"reference": {"rl.kl_coef=0.1", "rl.proximal=true", "rl.temperature=1.3"},
		"mismatch":  {"rollout.allow_mismatch=true", "rollout.numerics.weights=fp8", "rollout.numerics.combine=bf16"},
		"adapters":  {"lora.rank=4", "rl.kl_coef=0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "run")
			if _, err := runTiny(t, out, false, append(testshape.RL(), set...)...); err != nil {
				t.Fatal(err)
			}
			want, mixed := Replayed{Steps: 6, Checkpoints: 2}, 0
			versions := map[int]bool{}
			if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
				want.Answers++
				want.Tokens += len(e.IDs)
				for _, v := range e.Versions {
					versions[v] = true
				}
				if e.Versions[0] != e.Versions[len(e.Versions)-1] {
					mixed++
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			want.Versions = len(versions)
			res, err := replayed(t, out, "device.threads=2", "run.micro_batch=3")
			if err != nil || res.Err() != nil {
				t.Fatalf("%v (%v)", res, err)
			}
			want.Digest = res.Digest
			if *res != want || want.Tokens < 500 || (mixed > 0) != (name == "stale") {
				t.Errorf("%+v, the log has %+v, %d answers of several versions", *res, want, mixed)
			}
			touchedRecord(t, out, mixed > 0)
			if name == "on policy" {
				touchedCheckpoint(t, out)
				incompleteRecord(t, out)
			}
		})
	}
}

// replayed replays a run.
func replayed(t *testing.T, out string, set ...string) (*Replayed, error) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	return Replay(context.Background(), out, set, log)
}

// touchedRecord moves the log-probability of the last token of an answer by a bit: of one that spans an update, or any.
func touchedRecord(t *testing.T, out string, spans bool) {
	t.Helper()
	whole := readBytes(t, filepath.Join(out, runlog.EpisodesFile))
	var text strings.Builder
	place := ""
	if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
		last := len(e.IDs) - 1
		if place == "" && e.Step == 12 && (!spans || e.Versions[0] != e.Versions[last]) {
			e.LogProbs[last] = math.Nextafter32(e.LogProbs[last], 0)
			place = fmt.Sprintf("step %d, prompt %d, sample %d, token %d of version %d: ",
				e.Step, e.Asked, e.Sample, last, e.Versions[last])
		}
		line, err := json.Marshal(e)
		text.Write(append(line, '\n'))
		return err
	}); err != nil || place == "" {
		t.Fatalf("nothing to touch (%v)", err)
	}
	writeText(t, filepath.Join(out, runlog.EpisodesFile), text.String())
	res, err := replayed(t, out)
	if res == nil || res.Differ != 1 || !strings.HasPrefix(res.First, place) {
		t.Errorf("%v, first %q (%v), want one at %s", res, res.First, err, place)
	}
	if err == nil {
		err = res.Err()
	}
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("a touched record: %v", err)
	}
	writeText(t, filepath.Join(out, runlog.EpisodesFile), whole)
}

// touchedCheckpoint changes a bit of the last checkpoint, whose checksums say nothing of it.
func touchedCheckpoint(t *testing.T, out string) {
	t.Helper()
	dir := filepath.Join(out, checkpointsDir, checkpointName(12))
	for _, name := range []string{optimizerFile, filepath.Join(weightsDir, "model.safetensors")} {
		path := filepath.Join(dir, name)
		whole, before := readBytes(t, path), readBytes(t, filepath.Join(dir, sumsFile))
		touch(t, path)
		if err := writeSums(dir); err != nil {
			t.Fatal(err)
		}
		want := name + " differs from what training on the recorded answers gives"
		if _, err := replayed(t, out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s was touched: %v", name, err)
		}
		writeText(t, path, whole)
		writeText(t, filepath.Join(dir, sumsFile), before)
	}
}

// incompleteRecord replays a record that says less than it seems to, or what no run can have recorded.
func incompleteRecord(t *testing.T, out string) {
	t.Helper()
	path := filepath.Join(out, runlog.EpisodesFile)
	whole := readBytes(t, path)
	first, rest, _ := strings.Cut(whole, "\n")
	edit := func(change func(e *runlog.Episode)) string {
		var e runlog.Episode
		if err := json.Unmarshal([]byte(first), &e); err != nil {
			t.Fatal(err)
		}
		change(&e)
		text, err := json.Marshal(&e)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n" + rest
	}
	for want, text := range map[string]string{
		"has no answers":         "",
		"training does not come": edit(func(e *runlog.Episode) { e.Versions[len(e.Versions)-1] = 1e9 }),
		"id 99999 of a vocab":    edit(func(e *runlog.Episode) { e.IDs[0] = 99999 }),
		"id -1 of a vocab":       edit(func(e *runlog.Episode) { e.Prompt[0] = -1 }),
		"versions from -3":       edit(func(e *runlog.Episode) { e.Versions[0] = -3 }),
		"step 0 and":             edit(func(e *runlog.Episode) { e.Step = 0 }),
		"5000 tokens": edit(func(e *runlog.Episode) {
			e.Prompt = make([]int32, 5000-len(e.IDs))
		}),
	} {
		writeText(t, path, text)
		if _, err := replayed(t, out); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("want %q: %v", want, err)
		}
	}
	writeText(t, path, whole)
	checkpoints := filepath.Join(out, checkpointsDir)
	if err := os.Rename(checkpoints, checkpoints+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := replayed(t, out); err == nil || !strings.Contains(err.Error(), "none was compared") {
		t.Errorf("without checkpoints: %v", err)
	}
	if err := os.Rename(checkpoints+".away", checkpoints); err != nil {
		t.Fatal(err)
	}
}

// touch changes a bit near the end of a file.
func touch(t *testing.T, path string) {
	t.Helper()
	text := []byte(readBytes(t, path))
	text[len(text)-5] ^= 1
	writeText(t, path, string(text))
}

// A key that the objective does not read is refused before anything is written.
func TestObjectiveKeys(t *testing.T) {
	for set, want := range map[string]string{
		"rl.gspo_gradient=mean":     `rl.gspo_gradient does nothing for objective "grpo": remove it`,
		"rl.kl_estimator=k1":        `rl.kl_estimator does nothing without kl_coef: remove it`,
		"rl.importance_level=token": `rl.importance_level does nothing without importance_cap or band_high: remove it`,
	} {
		out := filepath.Join(t.TempDir(), "run")
		if _, err := runTiny(t, out, false, append(testshape.RL(), set)...); err == nil ||
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", set, err, want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: a folder was made", set)
		}
	}
}

// Questions come from a file, judged by a program; the rewards reach the record, and a run resumes on the same
// questions alone.
func TestLearnFromFile(t *testing.T) {
	dir := t.TempDir()
	questions, held := filepath.Join(dir, "questions.jsonl"), filepath.Join(dir, "held.jsonl")
	var lines strings.Builder
	for i := range 40 {
		fmt.Fprintf(&lines, "{\"prompt\": \"make %d from %d %d %d:\", \"answer\": \"%d\"}\n", i+3, i, 2, 1, i)
	}
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(questions, lines.String())
	write(held, lines.String()[:strings.Index(lines.String(), "\n")+1])
	set := append(testshape.RL(), "warm_start.steps=0", "data.task=", "data.path="+questions, "data.eval_path="+held,
		"rl.overlong_rows=0", "run.steps=3", "rl.reward=command",
		`rl.command=["awk", "{n = split($0, parts, \" \"); print \"{\\\"reward\\\": \" n / 100 \"}\"}"]`)
	out := filepath.Join(dir, "run")
	if _, err := runTiny(t, out, false, set...); err != nil {
		t.Fatal(err)
	}
	different := map[float64]bool{}
	if err := runlog.EachEpisode(out, func(e *runlog.Episode, _ []byte) error {
		different[e.Reward] = true
		return nil
	}); err != nil || len(different) < 3 {
		t.Errorf("rewards %v (%v)", different, err)
	}
	write(questions, strings.Replace(lines.String(), "make 3", "make 4", 1))
	if _, err := runTiny(t, out, true, set...); err == nil || !strings.Contains(err.Error(), "other questions") {
		t.Errorf("other questions: %v", err)
	}
}

// lossProgram makes this test binary the program of a custom loss: that of GRPO at ratio 1.
const lossProgram = "LOCKSTEP_TEST_LOSS"

func runLossProgram() error {
	dec, enc := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for dec.More() {
		var a customAnswer
		if err := dec.Decode(&a); err != nil {
			return err
		}
		if !slices.Equal(a.LogProbs, a.Rollout) {
			return errors.New("the rollout and the trainer disagree")
		}
		g := customGradients{}
		for range a.IDs {
			g.Gradients = append(g.Gradients, -float32(a.Weight)*float32(a.Advantage))
		}
		if err := enc.Encode(g); err != nil {
			return err
		}
	}
	return nil
}

// A loss in a program of its own, GRPO's at ratio 1, leads to the bits that the built-in objective leads to; what a
// program gets wrong is said in a line.
func TestCustomLoss(t *testing.T) {
	base := append(testshape.RL(), "run.steps=2")
	want, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, base...)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(lossProgram, "1")
	custom := append(base, "rl.objective=custom", "rl.aggregate=sequence", "rl.loss=['"+os.Args[0]+"', '-test.run=^$']")
	got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, custom...)
	if err != nil || got != want {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
	// the program reads log-probabilities between two updates
	if _, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(custom, "rl.minibatches=2",
		"optim.lr=1e-30", "offload.optimizer=true")...); err != nil {
		t.Error(err)
	}
	for program, want := range map[string]string{
		`"awk", "{exit 3}"`: "exit status 3",
		`"awk", "NR == 1 {print \"{\\\"gradients\\\": [1]}\"}"`: "got 1 gradients",
		`"no-such-program"`: "not found",
	} {
		_, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, "rl.objective=custom",
			"rl.loss=["+program+"]")...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
			!strings.Contains(err.Error(), "rl.loss") {
			t.Errorf("%s: %v, want one line with %q", program, err, want)
		}
	}
}
