package train

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// drawn is a run of n steps with evaluations, and strings that try to leave their place.
func drawn(n int) Report {
	r := Report{
		Name: `countdown <script>alert("name")</script>`, Date: noon, Duration: 83 * time.Second,
		Shape:       []byte("[run]\nname = \"</pre><script>\"\n"),
		Environment: []Fact{{"device", "cpu, 2 threads, avx512"}, {"Go", "go1.26.0"}, {"<i>", "</td>"}},
		Proof: &Proof{Tokens: 2048, Logits: 557056, LogProbs: 2047, Digest: strings.Repeat("c0ffee12", 8), Ways: []ProofWay{
			{Name: "packed training", Logits: 200000}, {Name: "chunked prefill", Logits: 200000}, {Name: "decode", Logits: 157056},
		}},
		Generations: []Generation{
			{Prompt: "numbers: 3 7 25\ntarget: 46", Answer: "7*3=21\n21+25=46\n7*3+25", Right: true},
			{Prompt: "numbers: 2 9 4\ntarget: 17", Answer: "9*2=18\n<b>18</b>-4=14\x00\xff", Note: "14 is not 17"},
		},
	}
	for step := 1; step <= n; step++ {
		x := float64(step)
		m := Record{Step: step, Time: noon, Tokens: 4096 * step, Loss: Num(0.3 + 5*math.Exp(-x/40) + 0.08*math.Sin(x*x)),
			LR: Num(2e-3 * (1 + math.Cos(math.Pi*x/float64(n))) / 2), GradNorm: Num(0.4 + 3/math.Sqrt(x) + 0.2*math.Sin(x*x*3)),
			TokensPerSecond: Num(21000 + 900*math.Sin(x*x*7))}
		if step%50 == 0 {
			m.EvalLoss, m.EvalAccuracy, m.EvalSamples = Num(0.33+5*math.Exp(-x/40)), Num(0.9*(1-math.Exp(-x/150))), 200
		}
		if step == 7 {
			m.Loss, m.GradNorm = Num(math.NaN()), Num(math.Inf(1))
		}
		r.Records = append(r.Records, m)
	}
	return r
}

// rendered writes a report to $REPORT (to look at it) or a temporary folder, and reads it back.
func rendered(t *testing.T, r Report) string {
	t.Helper()
	dir := os.Getenv("REPORT")
	if dir == "" {
		dir = t.TempDir()
	}
	if err := WriteReport(dir, r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, reportFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReport(t *testing.T) {
	text := rendered(t, drawn(400))
	for _, want := range []string{
		"Zero KLD", "0 of 557,056 logits", "1.64M", "1m23s", "✓ right", "✗ wrong", "14 is not 17", "&lt;00&gt;\ufffd",
		"countdown &lt;script&gt;", "&lt;/pre&gt;&lt;script&gt;", "&lt;b&gt;18&lt;/b&gt;", "&lt;i&gt;", "&lt;/td&gt;", "held-out accuracy",
		">Loss<", ">Accuracy<", ">Throughput<", ">Learning rate<", ">Gradient norm<", "prefers-color-scheme",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if m := regexp.MustCompile(`(?i)<script|https?://|NaN|Inf\b|ZgotmplZ|<link|url\(`).FindString(text); m != "" {
		t.Errorf("the page has %q", m)
	}
	if again := rendered(t, drawn(400)); again != text {
		t.Error("the same report gives other bytes")
	}
}

func TestReportOfAFailedProof(t *testing.T) {
	r := drawn(1)
	r.Proof.Mismatches, r.Proof.KL = 3, 1e-9
	text := rendered(t, r)
	if strings.Contains(text, "Zero KLD") || !strings.Contains(text, "is NOT the trained model") || !strings.Contains(text, "1e-09") {
		t.Error("a failed proof is not shown as one")
	}
	if (&Proof{}).Zero() {
		t.Error("a proof of nothing counts")
	}
}

func TestReportOfNothing(t *testing.T) {
	text := rendered(t, Report{Name: "empty", Date: noon})
	for _, not := range []string{"<svg viewBox", "<h2>", "verdict good"} {
		if strings.Contains(text, not) {
			t.Errorf("an empty run shows %q", not)
		}
	}
	if err := WriteReport(filepath.Join(t.TempDir(), "none"), Report{}); err == nil {
		t.Error("a folder that does not exist is written to")
	}
}

// TestCurveSVG also draws constant, tiny and very long curves: whatever comes must be well-formed and inside the picture.
func TestCurveSVG(t *testing.T) {
	path := filepath.Join(t.TempDir(), "curve.svg")
	if dir := os.Getenv("REPORT"); dir != "" {
		path = filepath.Join(dir, "curve.svg")
	}
	flat := []Record{{Step: 1, Loss: Num(0)}, {Step: 2, Loss: Num(0)}}
	huge := []Record{{Step: 1, Loss: Num(-1e300)}, {Step: 1e9, Loss: Num(1e300)}}
	coordinate := regexp.MustCompile(`[ML](-?[0-9.]+) (-?[0-9.]+)`)
	for _, c := range []struct {
		name    string
		records []Record
	}{{"one", flat[:1]}, {"flat", flat}, {"huge", huge}, {"long", drawn(100000).Records}, {"usual", drawn(400).Records}} {
		name, records := c.name, c.records
		if err := WriteCurveSVG(path, records); err != nil {
			t.Fatal(name, err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for dec := xml.NewDecoder(strings.NewReader(string(text))); err != io.EOF; {
			if _, err = dec.Token(); err != nil && err != io.EOF {
				t.Fatalf("%s: %v in %.300s", name, err, text)
			}
		}
		if len(text) > 100_000 || strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
			t.Errorf("%s: %d bytes: %.2000s", name, len(text), text)
		}
		for _, m := range coordinate.FindAllStringSubmatch(string(text), -1) {
			var p point
			if _, err := fmt.Sscan(m[1]+" "+m[2], &p.X, &p.Y); err != nil || p.X < 0 || p.X > chartW || p.Y < 0 || p.Y > chartH {
				t.Fatalf("%s: point %v outside (%v)", name, p, err)
			}
		}
	}
	if err := WriteCurveSVG(path, nil); err == nil {
		t.Error("an empty curve is drawn")
	}
}

func TestNumbersForPeople(t *testing.T) {
	for got, want := range map[string]string{
		count(0): "0", count(-1234): "-1,234", count(123): "123", count(1234567): "1,234,567", percent(0.9251): "92.5%", percent(1): "100%",
		compact(1500): "1.5k", compact(2e6): "2M", compact(12): "12", short(0.04123): "0.0412", clean("a\tb\x1b"): "a\tb<1b>",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
