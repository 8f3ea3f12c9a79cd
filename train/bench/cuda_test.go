package bench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/train/testshape"
)

// A peer that fails hides neither what was measured before nor what it said. Next to adapters on 4 bits it has NF4.
func TestBenchPeerFails(t *testing.T) {
	s, err := testshape.Parse([]string{"lora.rank=4", "model.weights=int4"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	peer, args := filepath.Join(dir, "python"), filepath.Join(dir, "args")
	script := "#!/bin/sh\ncat > /dev/null\necho \"$@\" > " + args + `
echo '{"name": "train", "tokens_per_second": 1e-3}{"name": "forward", "problem": "no kernels"}'
echo out of memory >&2
exit 3
`
	if err := os.WriteFile(peer, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = CUDA(context.Background(), s, Options{Steps: 1, Each: time.Millisecond, Peer: peer, Out: &out})
	if err == nil || !strings.Contains(err.Error(), "out of memory") || strings.Contains(err.Error(), "\n") {
		t.Errorf("the peer's failure: %v", err)
	}
	if said, err := os.ReadFile(args); err != nil || !strings.HasSuffix(string(said), " nf4\n") {
		t.Errorf("arguments %q, %v", said, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) < 4 {
		t.Fatalf("output %q", &out)
	}
	for i, want := range []string{"  train", "  forward: not run by the peer: no kernels", "  decode"} {
		line := lines[len(lines)-3+i]
		if !strings.HasSuffix(line, want) || strings.Contains(line, " - ") == (i == 0) {
			t.Errorf("line %q, want one of%s", line, want)
		}
	}
}

// Where the optimizer's state lies in the host's memory, its update is measured next to copies of as many bytes.
func TestBenchStatesOnHost(t *testing.T) {
	s, err := testshape.Parse([]string{"offload.optimizer=true", "offload.ring=0.0001", "offload.activations=true",
		"run.recompute=full", "model.config.num_hidden_layers=5"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := CUDA(context.Background(), s, Options{Steps: 1, Each: time.Millisecond, Out: &out}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{` MiB of the device, \d+ MiB pinned\n`,
		`update of states in the host's memory: [\d.]+ s, [\d.]+ G parameters/s, [\d.]+ GB/s each way; copies alone ` +
			`[\d.]+ GB/s each way at once, ratio \d+\.\d\d\n`} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("%s\nwant %s", &out, want)
		}
	}
}
