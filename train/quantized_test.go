package train

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/model/checkpoint"
	"lockstep/parallel"
	"lockstep/quant"
	"lockstep/train/runlog"
	"lockstep/train/setup"
	"lockstep/train/testshape"
)

// runSet trains a tiny shape on one rank and returns its folder.
func runSet(t *testing.T, set ...string) string {
	t.Helper()
	return runFrom(t, "", set...)
}

// runFrom is runSet of a model that a folder holds; "": a new network.
func runFrom(t *testing.T, folder string, set ...string) string {
	t.Helper()
	s, err := testshape.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	if folder != "" {
		s.Model.Path, s.Model.Family, s.Model.Tokenizer, s.Model.Config = folder, "", "", nil
	}
	out := filepath.Join(t.TempDir(), "run")
	if err := runDevices(context.Background(), t, s, out, delayedRanks(t, s, 0)); err != nil {
		t.Fatal(err)
	}
	return out
}

// fp8x128 are settings of products of codes.
const fp8x128 = "definition.dot=tc16 definition.acts=fp8x128"

// Training whose weights are codes does not depend on micro-batches and recompute, depends on the format, and is not
// training of numbers.
func TestQAT(t *testing.T) {
	digests := map[string]string{}
	for _, weights := range []string{"auto", "int4", "mxfp4", "mxfp8", "fp8", "mxfp8 definition.acts=mxfp8",
		"mxfp8 definition.grads=mxfp8", "int4 definition.acts=mxfp8 definition.grads=mxfp8",
		"fp8 model.dtype=bf16 " + fp8x128} {
		set := append([]string{"run.steps=3", "optim.warmup_steps=0", "run.packs=4", "model.coded=projections"},
			strings.Fields("model.weights="+weights)...)
		want := wholeDigest(t, runSet(t, set...))
		for _, more := range [][]string{{"run.micro_batch=2"}, {"run.recompute=full"}, {"device.isa=portable"}} {
			if got := wholeDigest(t, runSet(t, append(append([]string{}, set...), more...)...)); got != want {
				t.Errorf("%s, %v:\n%s\nwant\n%s", weights, more, got, want)
			}
		}
		if other, ok := digests[want]; ok {
			t.Errorf("weights %s and %s end in the same files", weights, other)
		}
		digests[want] = weights
	}
}

// A new network in a format starts from the numbers that it starts from without one, not from drawn codes: training is
// that of a folder which holds them, as a run without a format saves after a step that is too small to change a number.
func TestQATStart(t *testing.T) {
	still := runSet(t, "run.steps=1", "optim.warmup_steps=0", "optim.lr=1e-30", "model.init_seed=7")
	start := filepath.Join(still, "model")
	for _, e := range []quant.Encoding{quant.INT4, quant.FP8} {
		set := []string{"run.steps=2", "optim.warmup_steps=0", "model.coded=projections", "model.weights=" + string(e)}
		fresh := wholeDigest(t, runSet(t, append(set, "model.init_seed=7")...))
		if from := wholeDigest(t, runFrom(t, start, set...)); fresh != from {
			t.Errorf("%s: a new network ends in\n%s\none that was saved before in\n%s", e, fresh, from)
		}
	}
}

// Answers sampled from codes that are trained have the trainer's own log-probabilities, in every format: no token
// differs on a bit.
func TestQATSamplesItself(t *testing.T) {
	for i, e := range quant.Encodings {
		acts := []string{"", "definition.acts=mxfp8", "", "model.dtype=bf16 " + fp8x128}[i]
		out := runSet(t, slices.Concat(testshape.RL(), strings.Fields(acts), []string{"warm_start.steps=2",
			"run.steps=3", "model.weights=" + string(e), "model.coded=projections", "rl.exact_kl=2"})...)
		steps, err := runlog.ReadMetrics(out)
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		for _, s := range steps {
			compared += s.Compared
			if s.Differ != 0 || s.KL != nil && *s.KL != 0 || s.KLExact != nil && *s.KLExact != 0 {
				t.Errorf("%s, step %d: %d of %d tokens differ", e, s.Step, s.Differ, s.Compared)
			}
		}
		if compared == 0 {
			t.Errorf("%s: nothing was compared", e)
		}
	}
}

// The folder that training in a format saves, opened as numbers, has the logits of the trainer that resumes from its
// masters. Codes of the saved numbers may be others: INT4 and FP8 do not encode their own numbers to themselves.
func TestDeployedIsTrained(t *testing.T) {
	for _, acts := range []quant.Encoding{quant.AsTrained, quant.MXFP8} {
		for _, e := range quant.Encodings {
			deployedIsTrained(t, e, acts)
		}
	}
	deployedIsTrained(t, quant.FP8, quant.FP8x128, strings.Fields("model.dtype=bf16 "+fp8x128)...)
}

// deployedIsTrained trains in a format with inputs rounded to acts, and keys and values to MXFP8 with them, as the
// folder's config.json says then.
func deployedIsTrained(t *testing.T, e, acts quant.Encoding, more ...string) {
	t.Helper()
	says := checkpoint.Rounding{Acts: acts}
	if acts != quant.AsTrained {
		says.Cache = quant.MXFP8
	}
	set := append([]string{"run.steps=3", "optim.warmup_steps=0", "model.weights=" + string(e),
		"model.coded=projections", "optim.lr=0.01", "definition.acts=" + cmp.Or(string(acts), "none"),
		"definition.cache=" + cmp.Or(string(says.Cache), "none")}, more...)
	out := runSet(t, set...)
	s, err := testshape.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	devices := delayedRanks(t, s, 0)
	w, err := parallel.Open([]kernels.Device{devices[0]}, parallel.Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	last, _ := lastSums(t, out)
	dir := filepath.Join(out, checkpointsDir, last)
	if err := w.Lead(func(r *parallel.Rank) error {
		of := func(folder string, o model.Options, restored bool) ([]float32, error) {
			m, err := model.LoadFolder(r.Dev, folder, "", o)
			if err != nil {
				return nil, err
			}
			if restored {
				m.TrainAll()
				if err := restore(w, model.Replicas{m}, dir); err != nil {
					return nil, err
				}
			}
			return firstLogits(r, m), nil
		}
		qat := model.Options{DType: setup.DType(s), Encode: setup.EncodeBy(string(e), "projections")}
		trained, err := of(filepath.Join(dir, weightsDir), qat, true)
		if err != nil {
			return err
		}
		result := filepath.Join(out, "model")
		if got, err := model.RoundingOf(result, ""); err != nil || got != says {
			t.Errorf("%s: config.json says %+v, want %+v: %v", e, got, says, err)
		}
		o := model.Options{DType: setup.DType(s)}
		if acts != quant.AsTrained {
			o.Weights = model.KeepWeights
		}
		deployed, err := of(result, o, false)
		if err == nil && !slices.Equal(trained, deployed) {
			t.Errorf("%s: the saved folder has other logits than the trainer", e)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// firstLogits are those of a short sequence.
func firstLogits(r *parallel.Rank, m *model.Model) []float32 {
	ids := []int32{3, 9, 4, 17, 5, 20, 6}
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: len(ids)}}, Segments: []int32{0, int32(len(ids))}}
	b := model.NewBatch(r, ids, l, nil)
	return model.ReadValues(r.Dev, m.Head.Logits(r, m.Forward(r, b, nil)))
}

// A result that no format of releases holds is saved as numbers, which the run says before it begins; one that fits is
// saved in codes.
func TestSavedAsNumbers(t *testing.T) {
	for width, want := range map[string]bool{"72": false, "64": true} {
		out := runSet(t, "run.steps=1", "optim.warmup_steps=0", "model.weights=mxfp4", "model.coded=projections",
			"model.config.moe_intermediate_size=32", "model.config.num_attention_heads=4", "model.config.head_dim=16",
			"model.config.hidden_size="+width)
		text, err := os.ReadFile(filepath.Join(out, "model", "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), "mxfp4-pack-quantized"); got != want {
			t.Errorf("%s columns: saved in codes: %t, want %t", width, got, want)
		}
	}
}

// The reference of a run in codes keeps the weights that the run started from: it does not learn with the trainer,
// whose codes change in place.
func TestReferenceOfCodes(t *testing.T) {
	out := runSet(t, append(testshape.RL(), "warm_start.steps=0", "run.steps=3", "rl.kl_coef=0.5", "model.weights=int4",
		"model.coded=projections", "optim.lr=0.01")...)
	s, err := testshape.Parse(append(testshape.RL(), "model.weights=int4", "model.coded=projections"))
	if err != nil {
		t.Fatal(err)
	}
	dev := delayedRanks(t, s, 0)[0]
	m, _, err := setup.OpenModel([]kernels.Device{dev}, s)
	if err != nil {
		t.Fatal(err)
	}
	dup, err := m.EmptyCopy(dev, m.DType, model.Encode{})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range m.Params {
		if p.Q != nil && p.Address() == dup.Params[i].Address() {
			t.Errorf("%s of a copy lies in the memory of the trained one", p.Name)
		}
	}
	steps, err := runlog.ReadMetrics(out)
	if err != nil {
		t.Fatal(err)
	}
	if last := steps[len(steps)-1].ReferenceKL; last == nil || *last < 1e-5 {
		t.Errorf("after some updates the divergence from the reference is %v", last)
	}
}

// Stacked experts in INT4 are saved as numbers, which in bf16 do not encode to their own codes: a run that is resumed
// makes the codes of the masters anew.
func TestStackedCodesResume(t *testing.T) {
	lines := filepath.Join(t.TempDir(), "ids.jsonl")
	writeIDs(t, lines, noise(256), memorisedLength)
	run := func(out string, resume bool, steps string) string {
		s, err := configs.Parse("stacked.toml", fmt.Appendf(nil, memorise, "../model/testdata/gpt_oss", lines),
			[]string{"run.steps=" + steps, "run.save_every=1", "optim.schedule=constant", "optim.warmup_steps=0",
				"optim.lr=0.01", "model.weights=int4", "model.coded=experts", "model.dtype=bf16"})
		if err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(out + ".log")
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if err := Run(context.Background(), s, Options{Out: out, Resume: resume, Log: log}); err != nil {
			t.Fatal(err)
		}
		return checkpointDigest(t, out)
	}
	dir := t.TempDir()
	want := run(filepath.Join(dir, "whole"), false, "4")
	run(filepath.Join(dir, "cut"), false, "2")
	if got := run(filepath.Join(dir, "cut"), true, "4"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
