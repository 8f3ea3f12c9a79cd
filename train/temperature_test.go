package train

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/optim"
	"lockstep/parallel"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
	"lockstep/train/trainer"
)

// At other temperatures than 1 rollout and trainer agree on every bit as they do at 1, and whatever does not belong to
// the definition changes none.
func TestLearnTempered(t *testing.T) {
	for temperature, set := range map[string][]string{"0.6": {"rl.minibatches=2", "rl.epochs=2"},
		"1.3": {"rl.objective=gspo", "rl.kl_coef=0.1"}} {
		isa := "auto"
		if temperature == "1.3" { // at 1, TestLearnSameBits has the other objective
			isa = "portable"
		}
		base := slices.Concat(testshape.RL(), set, []string{"rl.temperature=" + temperature, "run.save_every=0"})
		whole := filepath.Join(t.TempDir(), "run")
		want, err := runTiny(t, whole, false, base...)
		if err != nil {
			t.Fatal(err)
		}
		exact(t, whole)
		if !strings.Contains(episodes(t, whole), `"temperature":`+temperature+"}") {
			t.Errorf("the record does not say that it is of temperature %s", temperature)
		}
		other := []string{"rollout.slots=3", "rollout.page_rows=5", "run.micro_batch=3", "run.recompute=true",
			"device.threads=2", "device.isa=" + isa}
		out := filepath.Join(t.TempDir(), "run")
		if got, err := runTiny(t, out, false, append(base, other...)...); err != nil || got != want ||
			episodes(t, out) != episodes(t, whole) {
			t.Errorf("temperature %s, %v: %s, want %s (%v)", temperature, other, got, want, err)
		}
	}
}

// A trainer that takes log-probabilities at another temperature than the engine is found out.
func TestOtherTemperatureIsDetected(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, append(testshape.RL(), "rl.temperature=0.6", "run.steps=2")...); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	path := filepath.Join(out, runlog.EpisodesFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndex(text, []byte(`"temperature":0.6}`))
	changed := slices.Concat(text[:last], []byte(`"temperature":1}`), text[last+len(`"temperature":0.6}`):])
	if err := os.WriteFile(path, changed, 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := Replay(context.Background(), out, nil, log)
	if err == nil {
		err = res.Err()
	}
	if err == nil || res.Differ == 0 || res.Differ > 24 {
		t.Errorf("one answer taken for temperature 1: %d of %d tokens differ (%v)", res.Differ, res.Tokens, err)
	}
}

// student is a sample of random tokens with an answer of n, at a temperature, whose recorded log-probabilities are near
// those of a uniform policy.
func student(rng *rand.Rand, vocab, prompt, n int, temperature float32) trainer.Sample {
	rows := prompt + n - 1
	le := trainer.Sample{Sample: data.Sample{IDs: make([]int32, rows), Targets: make([]int32, rows)}}
	for t := range rows {
		le.IDs[t], le.Targets[t] = rng.Int32N(int32(vocab)), -1
		if t >= prompt-1 {
			le.Targets[t] = rng.Int32N(int32(vocab))
		}
		le.Rollout = append(le.Rollout, float32(-math.Log(float64(vocab))+0.1*rng.NormFloat64()))
		le.Reference = append(le.Reference, le.Rollout[t]+float32(0.1*rng.NormFloat64()))
	}
	le.Advantage = slices.Repeat([]float32{float32(rng.NormFloat64())}, rows)
	le.Inverse = slices.Repeat([]float32{kernels.Inverse(temperature)}, rows)
	return le
}

// loss64 is the loss in float64 from the head's inputs n [T, H] and its weights w [V, H]. Bounds of ratios are out of
// reach.
func loss64(n []float32, w []float64, rows optim.Rows, temperature float64, s optim.Settings,
	sequence bool) (loss float64) {
	hidden := len(n) / len(rows.Targets)
	change := make([]float64, len(rows.Targets))
	for t, target := range rows.Targets {
		if target < 0 {
			continue
		}
		sum, own := 0.0, 0.0
		for v := range len(w) / hidden {
			z := 0.0
			for h := range hidden {
				z += float64(n[t*hidden+h]) * w[v*hidden+h]
			}
			z /= temperature
			sum += math.Exp(z)
			if v == int(target) {
				own = z
			}
		}
		lp := own - math.Log(sum)
		change[t] = lp - float64(rows.Rollout[t])
		if s.KLCoef > 0 {
			d := float64(rows.Reference[t]) - lp
			loss += float64(rows.Weight[t]) * s.KLCoef * (math.Exp(d) - 1 - d)
		}
	}
	for i, from := range rows.Sequences[:len(rows.Sequences)-1] {
		to, mean, count := rows.Sequences[i+1], 0.0, 0.0
		for t := from; t < to; t++ {
			if rows.Targets[t] >= 0 {
				mean, count = mean+change[t], count+1
			}
		}
		for t := from; t < to; t++ {
			if rows.Targets[t] < 0 {
				continue
			}
			log := change[t]
			if sequence {
				log = mean / count
			}
			loss -= float64(rows.Weight[t]) * math.Exp(log) * float64(rows.Advantage[t])
		}
	}
	return loss
}

// temperedError runs a micro-batch at a temperature and holds the gradient of the head's weights against difference
// quotients at another, or the same; it returns the largest difference relative to the largest gradient.
func temperedError(t *testing.T, tr *trainer.Trainer, name string, s optim.Settings, temperature float32,
	quotients float64) (worst float64) {
	t.Helper()
	s, err := optim.Resolve(name, s)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Objective, err = optim.New(name, s); err != nil {
		t.Fatal(err)
	}
	rng, r, m := rand.New(rand.NewPCG(31, 32)), tr.Rank, tr.Model
	batch := []trainer.Sample{student(rng, m.Vocab, 3, 9, temperature), student(rng, m.Vocab, 1, 4, temperature),
		student(rng, m.Vocab, 5, 6, temperature)}
	packs := trainer.Pack(batch, 1, s.Aggregate, 16, 1024).Packs
	b := trainer.NewBatch(packs, 1024)
	ids, rows := b.IDs, b.Rows
	n := model.ReadValues(r.Dev, m.Head.Norm.Forward(r, m.Forward(r, model.NewBatch(r, ids, b.Layout, nil), nil), nil))
	r.Dev.Zero(m.Head.W.HeadGrad)
	tr.ForwardBackward(packs)
	got := parallel.Download[float32](r, m.Head.W.HeadGrad)
	var w []float64
	for _, v := range model.ReadValues(r.Dev, m.Head.W.W) {
		w = append(w, float64(v))
	}
	largest := float64(slices.Max(got))
	for i := range 40 {
		at := rng.IntN(len(w))
		if target := rows.Targets[i%len(ids)]; target >= 0 { // where gradients are large
			at = int(target)*m.Head.W.W.Cols + i%m.Head.W.W.Cols
		}
		const step = 1e-4
		kept := w[at]
		w[at] = kept + step
		up := loss64(n, w, rows, quotients, s, name == "gspo")
		w[at] = kept - step
		want := (up - loss64(n, w, rows, quotients, s, name == "gspo")) / (2 * step)
		w[at] = kept
		worst = max(worst, math.Abs(want-float64(got[at]))/largest)
	}
	return worst
}

// Gradients at a temperature are those of the losses of softmax(logits/temperature), by difference quotients in
// float64; those at another temperature are not.
func TestTemperedGradients(t *testing.T) {
	for name, s := range map[string]optim.Settings{"grpo": {ClipLow: 0.9, ClipHigh: 5, KLCoef: 0.3},
		"gspo": {ClipLow: 0.9, ClipHigh: 5, GSPOGradient: "mean"}} {
		if err := ready(t, false, func(_ *limited, tr *trainer.Trainer) {
			for _, temperature := range []float32{0.7, 1, 1.3} {
				if worst := temperedError(t, tr, name, s, temperature, float64(temperature)); worst > 1e-5 {
					t.Errorf("%s at %g: a gradient is off by %.2g of the largest", name, temperature, worst)
				}
			}
			if worst := temperedError(t, tr, name, s, 0.7, 1); worst < 0.1 {
				t.Errorf("%s: gradients at 0.7 pass for those at 1, within %.2g", name, worst)
			}
		}); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", name, err))
		}
	}
}
