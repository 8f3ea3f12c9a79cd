package bench

import (
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"lockstep/train/testshape"
)

// fakePython is an interpreter that reads the script, writes its arguments to a file and prints some lines.
func fakePython(t *testing.T, lines string) (python, args string) {
	t.Helper()
	dir := t.TempDir()
	python, args = filepath.Join(dir, "python"), filepath.Join(dir, "args")
	script := "#!/bin/sh\ncat > /dev/null\necho \"$@\" > " + args + "\ncat <<'END'\n" + lines + "\nEND\n"
	if err := os.WriteFile(python, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return python, args
}

// wants reports patterns that a text does not match.
func wants(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(text) {
			t.Errorf("%s is not in\n%s", p, text)
		}
	}
}

// The peer's exchanges stand next to ours of the same name and size.
func TestBenchExchangePeer(t *testing.T) {
	python, args := fakePython(t, `{"name": "all-gather", "mib": 2, "bytes_per_second": 1e9}
{"name": "all-to-all", "mib": 1, "bytes_per_second": 5e8}`)
	var out bytes.Buffer
	o := ExchangeOptions{Device: "cpu", Ranks: 3, MiB: []int{1, 2}, Each: time.Millisecond, Peer: python, Out: &out}
	if err := Exchange(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	wants(t, out.String(), `(?m)^ +1 +\d+\.\d\d +\d+\.\d\d +0\.50 +\d+\.\d\d +all-to-all$`,
		`(?m)^ +2 +\d+\.\d\d +\d+\.\d\d +1\.00 +\d+\.\d\d +all-gather$`,
		`(?m)^ +2 +\d+\.\d\d +\d+\.\d\d +- +- +all-to-all$`)
	half := regexp.MustCompile(`(?m)^ +1 +(\d+\.\d\d) +\S+ +0\.50 +(\d+\.\d\d) +all-to-all$`)
	m := half.FindStringSubmatch(out.String())
	if m != nil && !about(m[2], m[1], 0.5) {
		t.Errorf("ratio %s of %s to 0.50", m[2], m[1])
	}
	if said, err := os.ReadFile(args); err != nil || string(said) != "- exchange cpu 3 0.001 1,2\n" {
		t.Errorf("arguments %q, %v", said, err)
	}
}

// The peer on one rank and on all has a line each, with our ratio to it; what failed there is the error.
func TestRanksPeer(t *testing.T) {
	s, err := testshape.Parse([]string{"parallel.ranks=2", "run.packs=2"})
	if err != nil {
		t.Fatal(err)
	}
	one := `{"ranks": 1, "tokens_per_second": 2000, "way": "micro-batches of 2"}`
	python, args := fakePython(t, one+"\n"+`{"ranks": 2, "tokens_per_second": 3000, "way": "micro-batches of 1"}`)
	var out bytes.Buffer
	o := RanksOptions{Steps: 1, Requests: 1, Prompt: Span{4, 9}, New: Span{2, 7}, Peer: python, Out: &out}
	if err := Ranks(context.Background(), s, o); err != nil {
		t.Fatal(err)
	}
	wants(t, out.String(), `(?m)^ +2000 +tokens/s of the peer's training steps: micro-batches of 2$`,
		`(?m)^ +3000 +tokens/s of the peer's training steps with FSDP2: micro-batches of 1$`,
		`(?m)^ +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +of the peer; the peer's own ratio 1\.50$`)
	ours := regexp.MustCompile(`(?m)^ +(\d+) +(\d+) +\S+ +tokens/s of training steps$`).FindStringSubmatch(out.String())
	ratio := regexp.MustCompile(`(?m)^ +(\S+) +(\S+) +\S+ +of the peer;`).FindStringSubmatch(out.String())
	if ours == nil || ratio == nil || !about(ratio[1], ours[1], 2000) || !about(ratio[2], ours[2], 3000) {
		t.Errorf("ratios %v of %v to 2000 and 3000", ratio, ours)
	}
	said, err := os.ReadFile(args)
	if err != nil || !regexp.MustCompile(`^- train cpu 2 \S+ fp32 4 128 1 0 q_proj\S* auto\n$`).Match(said) {
		t.Errorf("arguments %q, %v", said, err)
	}
	o.Peer, _ = fakePython(t, one+"\n"+`{"ranks": 2, "problem": "OutOfMemoryError: none"}`)
	out.Reset()
	err = Ranks(context.Background(), s, o)
	if want := "with ranks = 2: OutOfMemoryError: none"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	wants(t, out.String(), `(?m)^ +2000 +tokens/s of the peer's training steps: micro-batches of 2$`)
	if strings.Contains(out.String(), "of the peer;") {
		t.Errorf("a ratio to what failed:\n%s", &out)
	}
	o.Alone = true
	if err := Ranks(context.Background(), s, o); err == nil || !strings.HasPrefix(err.Error(), "--alone --peer") {
		t.Errorf("alone with a peer: %v", err)
	}
	o.Alone, o.Peer = false, filepath.Join(t.TempDir(), "none")
	if err := Ranks(context.Background(), s, o); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("no interpreter: %v", err)
	}
}

// about tells whether a printed ratio is that of a printed number to another, within what is printed.
func about(ratio, of string, to float64) bool {
	r, err := strconv.ParseFloat(ratio, 64)
	n, err2 := strconv.ParseFloat(of, 64)
	return err == nil && err2 == nil && math.Abs(r-n/to) <= 0.01+0.01/to+0.5/to
}

// The table of kernels has a peer's times under its own names, and at the end those that it alone has or cannot run.
func TestPrintKernelTimes(t *testing.T) {
	var out bytes.Buffer
	ours := []kernelTime{{Name: "copy", Seconds: 1e-3, bytes: 1e9},
		{Name: "mm, int4", Seconds: 2e-3, bytes: 1e9, peer: "mm, nf4", note: ": 1.10 times bf16's rate"},
		{Name: "mm, fp8", Seconds: 2e-3}}
	peers := []kernelTime{{Name: "mm, nf4", Seconds: 3e-3}, {Name: "mm, rows", Seconds: 4e-3},
		{Name: "mm, fp8", Problem: "no such kernel"}}
	if err := printKernelTimes(&out, ours, peers); err != nil {
		t.Fatal(err)
	}
	wants(t, out.String(), `(?m)^ +2000\.0 +- +500 +50% +3000\.0 +1\.50 +mm, int4: 1\.10 times bf16's rate$`,
		`(?m)^ +2000\.0 +- +- +- +- +- +mm, fp8$`, `(?m)^ +- +- +- +- +4000\.0 +- +mm, rows$`,
		`(?m)^ +- +- +- +- +- +- +mm, fp8: not run: no such kernel$`)
	if strings.Count(out.String(), "mm, nf4") > 0 {
		t.Errorf("a peer's time twice:\n%s", &out)
	}
}

// A band of rows that differs from torch's on a bit is an error.
func TestCompareCodes(t *testing.T) {
	for _, c := range []struct {
		theirs []string
		want   string
	}{{[]string{"a", "b"}, ""}, {[]string{"a", "c"}, "1 of 2 bands"}, {[]string{"a"}, "1 of 2 bands"}} {
		err := compareCodes(io.Discard, []string{"a", "b"}, c.theirs)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.theirs, err)
		}
	}
}
