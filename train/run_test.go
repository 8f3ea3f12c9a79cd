package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/serve"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// oneThread is for runs that are too small for more: a second thread would take the core of another package's tests.
const oneThread = "device.threads=1"

// runTiny runs the shape on one thread, with settings on top, and returns the digest of its last checkpoint: weights
// and optimizer.
func runTiny(t *testing.T, out string, resume bool, set ...string) (string, error) {
	t.Helper()
	s, err := testshape.Parse(append([]string{oneThread}, set...))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if err := Run(context.Background(), s, Options{Out: out, Resume: resume, Log: log}); err != nil {
		return "", err
	}
	return checkpointDigest(t, out), nil
}

// lastSums is the name of a run's last checkpoint and the checksums of its files.
func lastSums(t *testing.T, out string) (name string, files map[string]string) {
	t.Helper()
	names, err := listCheckpoints(filepath.Join(out, checkpointsDir))
	if err != nil || len(names) == 0 {
		t.Fatalf("no checkpoint in %s: %v", out, err)
	}
	if files, err = sums(filepath.Join(out, checkpointsDir, names[0])); err != nil {
		t.Fatal(err)
	}
	return names[0], files
}

func checkpointDigest(t *testing.T, out string) string {
	t.Helper()
	name, files := lastSums(t, out)
	return name + " " + files["model/model.safetensors"] + " " + files[optimizerFile]
}

// Whatever does not belong to the definition changes no bit of the checkpoint after 8 steps.
func TestSameBits(t *testing.T) {
	for _, dtype := range []string{"fp32", "bf16"} {
		base := []string{"model.dtype=" + dtype, "run.steps=8", "run.save_every=0"}
		want, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, base...)
		if err != nil {
			t.Fatal(err)
		}
		for _, set := range [][]string{
			{"device.isa=avx2", "run.micro_batch=2"}, {"device.isa=avx512", "device.threads=3"},
			{"run.micro_batch=4", "device.threads=2"}, {"run.recompute=true"},
			{"run.micro_batch=3", "run.recompute=true", "device.isa=portable", "device.threads=2"},
		} {
			got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(set, base...)...)
			if err != nil && strings.Contains(err.Error(), "this machine has no") {
				t.Logf("%v: %v", set, err)
				continue
			}
			if err != nil || got != want {
				t.Errorf("%s %v: %s, want %s (%v)", dtype, set, got, want, err)
			}
		}
		if got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false,
			append(base, "run.seed=2")...); err != nil || got == want {
			t.Errorf("another order of the data gives the same bits: the test cannot fail (%v)", err)
		}
	}
}

// tc16 emulates tensor cores; micro-batches and instruction sets change no bit there either.
func TestSameBitsTC16(t *testing.T) {
	poly := sameBitsTC16(t, "poly")
	if ex2h := sameBitsTC16(t, "ex2h"); ex2h == poly {
		t.Error("another exp2 gives the same bits: it is not used")
	}
}

func sameBitsTC16(t *testing.T, exp2 string) string {
	t.Helper()
	base := []string{"model.dtype=bf16", "definition.dot=tc16", "definition.exp2=" + exp2, "run.steps=4",
		"run.save_every=0"}
	want, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, base...)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range [][]string{{"run.micro_batch=2", "device.isa=avx2"}, {"run.micro_batch=4", "device.threads=2"},
		{"run.recompute=true"}, {"device.isa=portable"}} {
		got, err := runTiny(t, filepath.Join(t.TempDir(), "run"), false, append(base, set...)...)
		if err != nil && strings.Contains(err.Error(), "this machine has no") {
			t.Logf("%s: %v", set, err)
			continue
		}
		if err != nil || got != want {
			t.Errorf("%s, %s: %s, want %s (%v)", exp2, set, got, want, err)
		}
	}
	return want
}

const (
	killedRun = "LOCKSTEP_TEST_RUN" // names the folder of a run that this test binary is to carry on
	killedSet = "LOCKSTEP_TEST_SET" // the settings of that run, a line each
)

func TestMain(m *testing.M) {
	if os.Getenv(lossProgram) != "" {
		if err := runLossProgram(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(rewardProgram) != "" {
		if err := runRewardProgram(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if out := os.Getenv(killedRun); out != "" {
		s, err := configs.Parse("tiny.toml", []byte(testshape.Tiny), strings.Split(os.Getenv(killedSet), "\n"))
		if err == nil {
			err = Run(context.Background(), s, Options{Out: out, Resume: runlog.HasRun(out), Log: os.Stderr})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A run that is killed at random moments and resumed ends with the same bits, and its log has each step once.
func TestKilled(t *testing.T) {
	for name, set := range map[string][]string{
		"supervised": {"run.steps=60"},
		"reinforced": append(testshape.RL(), "run.steps=16", "rl.minibatches=2", "rl.epochs=2"),
		"stale":      append(testshape.RL(), "run.steps=24", "rl.staleness=2", "rl.temperature=0.6"),
		"pairs":      append(tinyPairs(t), "run.steps=30"),
		"adapters":   append(tinyPairs(t), "run.steps=30", "lora.rank=4"),
	} {
		t.Run(name, func(t *testing.T) { killed(t, set, nil, rand.New(rand.NewPCG(1, 2))) })
	}
}

// A run that is killed at random moments and resumed on other ranks, with weights cut in other ways, ends with the bits
// of one rank.
func TestKilledOnRanks(t *testing.T) {
	meshes := [][]string{nil, {"parallel.ranks=8"}, {"parallel.ranks=2", "parallel.weights=sharded",
		"offload.optimizer=true", "offload.host_update=1"}, {"parallel.ranks=4", "parallel.experts=4",
		"offload.optimizer=true", "offload.ring=0.0001", "offload.host_update=0.00002"}}
	for name, set := range map[string][]string{
		"full":     {"run.steps=40", "run.packs=8", "data.eval_samples=0"},
		"adapters": append(tinyPairs(t), "run.steps=30", "lora.rank=4", "lora.target_parameters=mlp.experts.down_proj"),
	} {
		t.Run(name, func(t *testing.T) { killed(t, set, meshes, rand.New(rand.NewPCG(1, 2))) })
	}
}

// killed is run once, and killed and resumed with each of the meshes one after the other; it returns how often.
func killed(t *testing.T, set []string, meshes [][]string, rng *rand.Rand) int {
	t.Helper()
	whole := filepath.Join(t.TempDir(), "whole")
	began := time.Now()
	want, err := runTiny(t, whole, false, set...)
	if err != nil {
		t.Fatal(err)
	}
	pause := time.Since(began) / 2
	out, kills := killing(t, set, meshes, rng, pause)
	for kills < 3 { // this machine was slower a moment ago
		pause /= 2
		out, kills = killing(t, set, meshes, rng, pause)
	}
	t.Logf("%d kills, each within %v", kills, pause)
	if got := checkpointDigest(t, out); got != want {
		t.Errorf("after %d kills %s, want %s", kills, got, want)
	}
	if one, other := recorded(t, whole), recorded(t, out); !slices.Equal(one, other) || len(one) == 0 {
		t.Errorf("after %d kills records\n%s\nwant\n%s", kills, strings.Join(other, "\n"), strings.Join(one, "\n"))
	}
	if a, b := episodes(t, whole), episodes(t, out); a != b {
		t.Errorf("the sampled answers differ after %d kills", kills)
	}
	for _, name := range files(t, out) {
		if leftover(filepath.Join(out, filepath.Dir(name)), filepath.Base(name)) {
			t.Errorf("%s is left of a run that was killed", name)
		}
	}
	return kills
}

// killing runs a shape in processes that are killed within pause of their start, ten times at most, until one comes to
// its end. It returns the run's folder and the kills.
func killing(t *testing.T, set []string, meshes [][]string, rng *rand.Rand, pause time.Duration) (out string,
	kills int) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "killed")
	for {
		c := exec.Command(os.Args[0], "-test.run=^$")
		own := append([]string{oneThread}, set...)
		if len(meshes) > 0 {
			own = append(own, meshes[kills%len(meshes)]...)
		}
		c.Env = append(os.Environ(), killedRun+"="+out, killedSet+"="+strings.Join(own, "\n"))
		var text strings.Builder
		c.Stderr = &text
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if kills < 10 {
			time.Sleep(time.Duration(rng.Int64N(int64(pause) + 1)))
			if err := c.Process.Kill(); err != nil {
				t.Fatalf("after %d kills: %v", kills, err)
			}
		}
		err := c.Wait()
		if err == nil {
			return out, kills
		}
		if c.ProcessState.Exited() {
			t.Fatalf("failed by itself after %d kills: %s", kills, text.String())
		}
		kills++
	}
}

// recorded is a run's records as they are in the log, but for what a clock and the process's memory say.
func recorded(t *testing.T, out string) (list []string) {
	t.Helper()
	for _, r := range readRecords(t, out) {
		r.Time, r.Memory, r.TokensPerSecond, r.RolloutSpeed, r.LearnSpeed = time.Time{}, 0, nil, nil, nil
		r.Ranks, r.Pinned = nil, 0 // how many there are, how long they waited, and what lies on the host
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(line))
	}
	return list
}

// episodes is the log of sampled answers, empty where there is none.
func episodes(t *testing.T, out string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(out, runlog.EpisodesFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// Being asked to stop finishes the step and saves, and resuming gives the same bits.
func TestInterrupted(t *testing.T) {
	for name, set := range map[string][]string{
		"supervised": nil,
		"masters":    {"run.steps=10", "model.dtype=bf16"}, // of bf16 weights
		"codes":      {"run.steps=10", "model.weights=int4", "model.coded=projections", "optim.lr=0.01"},
		"codes sampled": append(testshape.RL(), "warm_start.steps=0", "run.steps=10", "model.weights=fp8",
			"rl.kl_coef=0.5"),
		"reinforced": append(testshape.RL(), "warm_start.steps=0", "run.steps=10"),
		"reference": append(testshape.RL(), "warm_start.steps=0", "run.steps=10", "rl.kl_coef=0.5",
			"rl.minibatches=2"),
		"stale": append(testshape.RL(), "warm_start.steps=0", "rl.staleness=2", "rollout.slots=20",
			"run.steps=10"),
	} {
		t.Run(name, func(t *testing.T) { interrupted(t, append(set, "run.save_every=0")) })
	}
}

func interrupted(t *testing.T, set []string) {
	whole := filepath.Join(t.TempDir(), "whole")
	want, err := runTiny(t, whole, false, set...)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "run")
	s, err := testshape.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	log, lines, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() { // asks to stop as soon as the run says that it has begun
		awaitRun(log, out)
		stop()
		io.Copy(io.Discard, log)
	}()
	if err := Run(ctx, s, Options{Out: out, Log: lines}); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("error %v", err)
	}
	if err := errors.Join(lines.Close(), log.Close()); err != nil {
		t.Error(err)
	}
	if names, err := listCheckpoints(filepath.Join(out, checkpointsDir)); err != nil || len(names) != 1 {
		t.Fatalf("checkpoints %v: the test shows nothing (%v)", names, err)
	}
	if got, err := runTiny(t, out, true, set...); err != nil || got != want {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
	if one, other := recorded(t, whole), recorded(t, out); !slices.Equal(one, other) {
		t.Errorf("records\n%s\nwant\n%s", strings.Join(other, "\n"), strings.Join(one, "\n"))
	}
}

// awaitRun reads a run's log up to the line that names its folder: the folder is there, and the first step is next.
func awaitRun(log io.Reader, out string) {
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), out+": ") {
			return
		}
	}
}

func TestRefusals(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	if _, err := runTiny(t, done, false, "run.steps=5"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		out    string
		resume bool
		set    []string
		want   string
	}{
		{done, false, nil, "already has a run"},
		{done, true, []string{"run.steps=5", "optim.lr=1e-3"}, "the shape has changed"},
		{done, true, []string{"run.steps=5", "model.dtype=bf16", "definition.dot=tc16"}, "definition"},
		{filepath.Join(t.TempDir(), "none"), true, nil, "has no run"},
		{filepath.Join(t.TempDir(), "no", "parent"), false, nil, "not a folder"},
		{filepath.Join(t.TempDir(), "x"), false, []string{"model.config.vocab_size=300"}, "vocab_size"},
		{filepath.Join(t.TempDir(), "x"), false, []string{"model.config.num_key_value_heads=3"}, "num_key_value_heads"},
		{filepath.Join(t.TempDir(), "x"), false, []string{"model.config.num_hiden_layers=3"}, "num_hidden_layers"},
		{filepath.Join(t.TempDir(), "x"), false, []string{"model.family=llama9"}, "not known"},
		{filepath.Join(t.TempDir(), "x"), false, []string{"lora.rank=4", "lora.targets=['nose']"}, "matches nothing"},
		{filepath.Join(t.TempDir(), "x"), false, []string{"data.countdown.numbers=7"}, "countdown"},
	} {
		_, err := runTiny(t, c.out, c.resume, c.set...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: error %v, want one line with %q", c.set, err, c.want)
		}
		if c.out != done && runlog.HasRun(c.out) {
			t.Errorf("%v: something was written", c.set)
		}
	}
}

// Warm-up that is longer than what run.epochs amounts to is refused before anything is written; as long as that is
// fine.
func TestWarmupOfEpochs(t *testing.T) {
	set := []string{"run.steps=0", "run.epochs=1", "run.packs=2", "data.countdown.train=12", "data.eval_samples=0"}
	out := filepath.Join(t.TempDir(), "run")
	_, err := runTiny(t, out, false, append(set, "optim.warmup_steps=3")...)
	if err == nil || !strings.HasPrefix(err.Error(),
		"optim.warmup_steps: 3 is more than the 2 steps of run.epochs = 1: ") ||
		!strings.Contains(err.Error(), "optim.warmup_ratio") || strings.Contains(err.Error(), "\n") ||
		runlog.HasRun(out) {
		t.Fatalf("error %v", err)
	}
	if _, err := runTiny(t, out, false, append(set, "optim.warmup_steps=2")...); err != nil {
		t.Fatal(err)
	}
	if got, want := rates(t, out), []float64{2.5e-3, 5e-3}; !slices.Equal(got, want) {
		t.Errorf("rates %v, want %v", got, want)
	}
}

// Warm-up as a share is of all optimizer steps: of the warm start, of reinforcement learning, of epochs.
func TestWarmupRatio(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	set := append(testshape.RL(), "warm_start.steps=4", "warm_start.warmup_ratio=0.5", "optim.warmup_ratio=0.5",
		"optim.schedule=constant", "run.steps=2", "rl.minibatches=2", "data.eval_samples=0")
	if _, err := runTiny(t, out, false, set...); err != nil {
		t.Fatal(err)
	}
	got := rates(t, out) // that of a step of reinforcement learning is of its first update
	if want := []float64{2.5e-3, 5e-3, got[2], 5e-4, 0.5e-3, 1e-3}; got[2] >= 5e-3 || !slices.Equal(got, want) {
		t.Errorf("rates %v, want %v", got, want)
	}
	out = filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, "run.steps=0", "run.epochs=1", "run.packs=1", "data.countdown.train=12",
		"optim.warmup_steps=0", "optim.warmup_ratio=0.5", "optim.schedule=constant", "data.eval_samples=0"); err !=
		nil {
		t.Fatal(err)
	}
	if got, want := rates(t, out), []float64{2.5e-3, 5e-3, 5e-3}; !slices.Equal(got, want) {
		t.Errorf("rates %v, want %v", got, want)
	}
}

// rates are the learning rates that a run recorded.
func rates(t *testing.T, out string) (list []float64) {
	t.Helper()
	for _, r := range readRecords(t, out) {
		list = append(list, float64(*r.LR))
	}
	return list
}

// A run whose numbers overflow stops and names the step, the tensor and the weights to start from.
func TestNotFinite(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	_, err := runTiny(t, out, false, "optim.lr=1e30", "optim.warmup_steps=0", "optim.weight_decay=0")
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"step 2: ", "not finite first in model.", "lower optim.lr",
		filepath.Join("checkpoints", "step-00000001", "model")} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// A run that diverges in its last step saves what it has, and the proof says that it diverged.
func TestNotFiniteAtTheEnd(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	_, err := runTiny(t, out, false, "run.steps=1", "optim.lr=1e15", "optim.warmup_steps=0", "optim.schedule=constant",
		"optim.weight_decay=0", "run.verify_tokens=200")
	if err == nil || errors.Is(err, trainer.ErrNotFinite) || !errors.Is(err, serve.ErrNotFinite) {
		t.Fatalf("%v, want the error of the proof", err)
	}
	final := filepath.Join(out, "model")
	for _, part := range []string{"proof of " + final, "not finite", "lower optim.lr"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
	for _, name := range []string{"model", filepath.Join("checkpoints", "step-00000001", "SHA256SUMS")} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
}

// A folder without a tokenizer trains on ids; text and tasks it refuses.
func TestWithoutTokenizer(t *testing.T) {
	dir := t.TempDir()
	lines := filepath.Join(dir, "ids.jsonl")
	if err := os.WriteFile(lines, []byte("{\"ids\":[1,2,3,4,5]}\n{\"ids\":[7,8,9]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ data, want string }{
		{"path = '" + lines + "'", ""},
		{"task = 'countdown'", "no tokenizer.json"},
		{"path = 'testdata/absent.jsonl'", "absent.jsonl"},
	} {
		text := "[model]\npath = '../model/testdata/qwen3_moe'\n[data]\npack_rows = 16\n" + c.data +
			"\n[run]\nsteps = 2\npacks = 1\nverify_tokens = 16\n"
		s, err := configs.Parse("folder.toml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		err = Run(context.Background(), s, Options{Out: filepath.Join(t.TempDir(), "run"), Log: log})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.data, err, c.want)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}
