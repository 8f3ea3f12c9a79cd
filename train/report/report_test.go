package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 5e6, time.UTC)

// folder is a run's folder made up for a report: a shape, records and, where given, a result and sampled answers.
type folder struct {
	set      []string
	records  []runlog.Record
	result   *runlog.Result
	episodes []*runlog.Episode
}

func (f folder) write(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	s, err := testshape.Parse(f.set)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(dir, 0o755), runlog.WriteFile(filepath.Join(dir, runlog.ShapeFile),
		s.TOML())); err != nil {
		t.Fatal(err)
	}
	m, err := runlog.OpenMetrics(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range f.records {
		r.Time = noon
		if err := m.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if f.result != nil {
		if err := runlog.WriteJSON(filepath.Join(dir, runlog.ResultFile), f.result); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.episodes) > 0 {
		if err := runlog.AppendEpisodes(dir, f.episodes); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// supervisedRun is a supervised run of n steps with evaluations, and strings that try to leave their place.
func supervisedRun(n int) folder {
	f := folder{result: &runlog.Result{
		Finished: noon, Seconds: 83, Environment: []runlog.NameValue{
			{Name: "device", Value: "cpu, 2 threads, avx512"}, {Name: "<i>", Value: "</td>"}},
		Proof: &runlog.Proof{Tokens: 2048, Logits: 557056, LogProbs: 2047, Digest: strings.Repeat("c0ffee12", 8),
			Ways: []runlog.ProofWay{{Name: "packed training", Logits: 200000}, {Name: "decode", Logits: 357056}}},
		Samples: []runlog.Generation{
			{Prompt: "numbers: 3 7 25\ntarget: 46", Answer: "7*3=21\n7*3+25", Reward: 1},
			{Prompt: "numbers: 2 9 4\ntarget: 17", Answer: "9*2=18\n<b>18</b>-4=14\x00", Note: "14 is not 17"},
		},
	}}
	for step := 1; step <= n; step++ {
		x := float64(step)
		m := runlog.Record{Step: step, Tokens: 4096 * step, Loss: runlog.Num(0.3 + 5*math.Exp(-x/40) +
			0.08*math.Sin(x*x)),
			LR:              runlog.Num(2e-3 * (1 + math.Cos(math.Pi*x/float64(n))) / 2),
			GradNorm:        runlog.Num(0.4 + 3/math.Sqrt(x) + 0.2*math.Sin(x*x*3)),
			TokensPerSecond: runlog.Num(21000 + 900*math.Sin(x*x*7))}
		if step%50 == 0 {
			m.EvalLoss, m.EvalAccuracy, m.EvalSamples = runlog.Num(0.33+5*math.Exp(-x/40)),
				runlog.Num(0.9*(1-math.Exp(-x/150))), 200
		}
		if step == 7 {
			m.Loss, m.GradNorm = runlog.Num(math.NaN()), runlog.Num(math.Inf(1))
		}
		f.records = append(f.records, m)
	}
	return f
}

// rlRun is one of reinforcement learning whose rollouts are so far from the trainer.
func rlRun(seed int, kl float64) folder {
	f := folder{set: append(testshape.RL(), fmt.Sprintf("run.seed=%d", seed))}
	if kl > 0 {
		f.set = append(f.set, "rollout.allow_mismatch=true", "rollout.numerics.weights=int4")
	}
	for step := 1; step <= 40; step++ {
		r := runlog.Record{Step: step, Loss: runlog.Num(1)}
		if step > 6 {
			differ := 0
			if kl > 0 {
				differ = 900 + step
			}
			r.Reward, r.KL, r.KLExact, r.Compared, r.Differ, r.LargestGap = runlog.Num(0.5+float64(step+seed)/100),
				runlog.Num(kl*float64(step)), runlog.Num(kl), 1000, differ, runlog.Num(kl*9)
			r.ClipFraction, r.Discarded, r.Entropy, r.Length = runlog.Num(kl*2), runlog.Num(0.5), runlog.Num(0.2),
				runlog.Num(7)
		}
		f.records = append(f.records, r)
	}
	f.episodes = []*runlog.Episode{{Step: 40, Prompt: []int32{1, 2}, IDs: []int32{3}, LogProbs: []float32{-1},
		Versions: []int{33}, Reward: 1, Learned: true, Text: " 4+<5>"}}
	return f
}

// rendered is the page of some runs.
func rendered(t *testing.T, dirs ...string) string {
	t.Helper()
	r, err := Read(dirs)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), ReportFile)
	if err := r.WriteHTML(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?i)<script|https?://|NaN|Inf\b|ZgotmplZ|<link|url\(`).Find(text); m != nil {
		t.Errorf("the page has %q", m)
	}
	return string(text)
}

func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("no %q", w)
		}
	}
}

func TestReport(t *testing.T) {
	dir := supervisedRun(400).write(t, "supervised")
	text := rendered(t, dir)
	has(t, text, "557,056", "1.64M", "1m23s", "right", "wrong", "14 is not 17", "&lt;b&gt;18&lt;/b&gt;", "&lt;i&gt;",
		"&lt;/td&gt;", "held-out accuracy",
		">Loss<", ">Accuracy<", ">Throughput<", ">Learning rate<", ">Gradient norm<", "prefers-color-scheme")
	if again := rendered(t, dir); again != text {
		t.Error("the same report gives other bytes")
	}
	failed := supervisedRun(1)
	failed.result.Proof.Mismatches, failed.result.Proof.KL = 3, 1e-9
	if text := rendered(t, failed.write(t, "failed")); !strings.Contains(text, "1e-09") {
		t.Error("a failed proof is not shown as one")
	}
	if (&runlog.Proof{}).Zero() {
		t.Error("a proof of nothing counts")
	}
}

// Seeds of one configuration are one curve, a KL of exactly 0 is said, and what differs is listed.
func TestReportOfSeveral(t *testing.T) {
	var dirs []string
	for seed := 1; seed <= 3; seed++ {
		dirs = append(dirs, rlRun(seed, 0).write(t, fmt.Sprintf("exact-%d", seed)), rlRun(seed, 0.01).write(t,
			fmt.Sprintf("apart-%d", seed)))
	}
	r, err := Read(dirs)
	if err != nil || r.String() != "6 runs of 2 configurations" {
		t.Fatalf("%v (%v)", r, err)
	}
	text := rendered(t, dirs...)
	has(t, text, "exact · 3 runs", "apart · 3 runs", "KL = 0 at every step", "102,000 sampled tokens",
		"0 at every step, 102k tokens equal", "rollout.numerics.weights", "int4", "&lt;5&gt;",
		">Reward<", ">KL of rollout and trainer<", ">Clip fraction<", ">Entropy<", ` band" d="`)
	path := filepath.Join(t.TempDir(), "poster.svg")
	if err := r.WriteSVG(path); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, path, posterW)
}

// Runs whose indexers learn have their curves in both stages, and others have none.
func TestReportOfIndexers(t *testing.T) {
	supervised, rl := supervisedRun(9), rlRun(1, 0)
	for _, f := range []folder{supervised, rl} {
		dir := f.write(t, "frozen")
		if text := rendered(t, dir); strings.Contains(text, ">Indexer") {
			t.Error("curves of indexers that learned nothing")
		}
		for i := range f.records {
			f.records[i].IndexerLoss, f.records[i].IndexerNorm = runlog.Num(1/float64(i+1)), runlog.Num(2)
		}
		has(t, rendered(t, f.write(t, "learning")), ">Indexer loss<", ">Indexer gradient norm<")
	}
}

// What is no run, or a run that was torn, is said in a line that names it.
func TestReportRefuses(t *testing.T) {
	good := rlRun(1, 0).write(t, "good")
	torn := rlRun(1, 0).write(t, "torn")
	if err := os.WriteFile(filepath.Join(torn, runlog.MetricsFile), []byte("{\"step\":1}\n{oops}\n"), 0o644); err !=
		nil {
		t.Fatal(err)
	}
	for want, dirs := range map[string][]string{
		"has no run":         {good, t.TempDir()},
		"metrics.jsonl:2":    {torn},
		"given twice":        {good, good},
		"has no metrics yet": {folder{}.write(t, "empty")},
	} {
		if _, err := Read(dirs); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line with %q", err, want)
		}
	}
}

// Pictures of constant, tiny and very long curves are well-formed, and every point of theirs lies inside.
func TestReportSVG(t *testing.T) {
	for name, f := range map[string]folder{
		"one":   {records: []runlog.Record{{Step: 1, Loss: runlog.Num(0)}}},
		"flat":  {records: []runlog.Record{{Step: 1, Loss: runlog.Num(0)}, {Step: 2, Loss: runlog.Num(0)}}},
		"huge":  {records: []runlog.Record{{Step: 1, Loss: runlog.Num(-1e300)}, {Step: 1e9, Loss: runlog.Num(1e300)}}},
		"long":  supervisedRun(20000),
		"usual": supervisedRun(400),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Read([]string{f.write(t, name)})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "curve.svg")
			if err := r.WriteSVG(path); err != nil {
				t.Fatal(err)
			}
			wellFormed(t, path, chartW)
		})
	}
}

func wellFormed(t *testing.T, path string, width float64) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(strings.NewReader(string(text))); err != io.EOF; {
		if _, err = dec.Token(); err != nil && err != io.EOF {
			t.Fatalf("%v in %.300s", err, text)
		}
	}
	if len(text) > 150_000 || strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
		t.Errorf("%d bytes: %.2000s", len(text), text)
	}
	points := regexp.MustCompile(`[ML](-?[0-9.]+) (-?[0-9.]+)`).FindAllStringSubmatch(string(text), -1)
	for _, m := range points {
		var p point
		if _, err := fmt.Sscan(m[1]+" "+m[2], &p.X, &p.Y); err != nil || p.X < 0 || p.X > width || p.Y < 0 ||
			p.Y > 400 {
			t.Fatalf("point %v outside (%v)", m, err)
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(-1234): "-1,234", count(123): "123", count(-123): "-123", count(1234567): "1,234,567",
		percent(0.9251): "92.5%", percent(1): "100%",
		Compact(1500): "1.5k", Compact(2e6): "2M", Compact(12): "12", short(0.04123): "0.0412",
		clean("a\tb\x1b"): "a\tb<1b>",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
