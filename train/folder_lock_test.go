package train

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/data/atomicfile"
	"lockstep/train/runlog"
	"lockstep/train/testshape"
)

// Two runs do not write into one folder: not a resumed one next to one that is going on, and not two that began at the
// same time.
func TestOccupied(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	if _, err := runTiny(t, out, false, "run.steps=4"); err != nil {
		t.Fatal(err)
	}
	lock, err := lockFolder(out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runTiny(t, out, true, "run.steps=4"); err == nil ||
		!strings.Contains(err.Error(), "another process trains in this folder") {
		t.Errorf("resumed next to another: error %v", err)
	}
	if err := (&job{folder: out}).createFolder(); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("begun next to another: error %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	j := &job{folder: out}
	if err := j.createFolder(); err == nil || !strings.Contains(err.Error(), "just started") {
		t.Errorf("begun after another: error %v", err)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := runTiny(t, out, true, "run.steps=4"); err != nil {
		t.Error(err)
	}
}

// A folder that could not be written leaves what stood there, and nothing else.
func TestAtomicDir(t *testing.T) {
	parent := t.TempDir()
	dir, full := filepath.Join(parent, "step"), errors.New("disk full")
	if err := atomicfile.Dir(dir, func(tmp string) error {
		return runlog.WriteFile(filepath.Join(tmp, "a"), []byte("first"))
	}); err != nil {
		t.Fatal(err)
	}
	err := atomicfile.Dir(dir, func(tmp string) error {
		return errors.Join(runlog.WriteFile(filepath.Join(tmp, "a"), []byte("second")), full)
	})
	if !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(text) != "first" {
		t.Errorf("%q (%v)", text, err)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("%v in its folder (%v)", entries, err)
	}
}

// A run that is asked to stop and cannot save does not say that it has.
func TestInterruptedUnsaved(t *testing.T) {
	out := filepath.Join(t.TempDir(), "run")
	s, err := testshape.Parse([]string{"run.save_every=0", "run.steps=200"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	log, lines, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 1)
	go func() {
		awaitRun(log, out)
		folder := filepath.Join(out, checkpointsDir)
		blocked <- errors.Join(os.Remove(folder), os.WriteFile(folder, nil, 0o644))
		stop()
		io.Copy(io.Discard, log)
	}()
	err = Run(ctx, s, Options{Out: out, Log: lines})
	if err == nil || errors.Is(err, ErrInterrupted) ||
		!strings.Contains(err.Error(), "was not written; fix that, then --resume") {
		t.Errorf("error %v", err)
	}
	if err := errors.Join(<-blocked, lines.Close(), log.Close()); err != nil {
		t.Error(err)
	}
}
