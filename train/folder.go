package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"lockstep/configs"
	"lockstep/train/runlog"
)

// runFolder returns the folder that a run writes to. By default a new run takes the next free of runs/NAME,
// runs/NAME-2, ..., and a resumed run the last one.
func runFolder(s *configs.Shape, out string, resume bool) (string, error) {
	if out == "" {
		out = s.Run.Out
	}
	if out != "" {
		if err := mustExist(filepath.Dir(out), "output: the parent of "+out+","); err != nil {
			return "", err
		}
		if err := writable(out); err != nil {
			return "", err
		}
		used := runlog.HasRun(out)
		if used && !resume {
			return "", fmt.Errorf("%s already has a run: continue it with --resume, or give another --out", out)
		}
		if resume && !used {
			return "", fmt.Errorf("%s has no run to resume", out)
		}
		return out, nil
	}
	last, next := "", filepath.Join("runs", s.Run.Name)
	for i := 2; runlog.HasRun(next); i++ {
		last, next = next, filepath.Join("runs", fmt.Sprintf("%s-%d", s.Run.Name, i))
	}
	if !resume {
		return next, writable(next)
	}
	if last == "" {
		return "", fmt.Errorf("%s has no run to resume", next)
	}
	return last, nil
}

// writable returns an error where a run could not write its folder, before anything is computed. A folder that does not
// exist would be created in the nearest folder above it that exists.
func writable(dir string) error {
	at := dir
	info, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	switch {
	case err != nil:
		return fmt.Errorf("output: %w", err)
	case !info.IsDir():
		return fmt.Errorf("output: %s is not a folder: give another --out", at)
	case !mayWrite(at):
		return fmt.Errorf("output: no permission to write to the folder %s: give another --out", at)
	}
	return nil
}

// mustExist returns an error where a folder does not exist.
func mustExist(dir, what string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s %s is not a folder: create it first", what, dir)
	}
	return nil
}
