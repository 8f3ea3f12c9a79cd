package train

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// unfinished are the names under which a run writes what it renames when it is complete: those of AtomicFile and of
	// [atomicfile.Dir].
	unfinished = regexp.MustCompile(`^\.(.+\.[0-9a-f]{16}\.tmp|step-[0-9]{8}|start|model|adapter)$`)
	// replaced are the names of folders that a complete one has replaced.
	replaced = regexp.MustCompile(`^(step-[0-9]{8}|start|model|adapter)\.old$`)
)

// removeUnfinished removes what a run that was killed has left half-written in its folder, which no other process may
// be writing to. A checkpoint of a large model that was not finished takes as much room as one that was.
func removeUnfinished(out string) error {
	var failed error
	for _, dir := range []string{out, filepath.Join(out, checkpointsDir)} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
		for _, e := range entries {
			if leftover(dir, e.Name()) {
				failed = errors.Join(failed, os.RemoveAll(filepath.Join(dir, e.Name())))
			}
		}
	}
	return failed
}

// leftover tells whether a name is one that only a killed run leaves. A replaced folder stays where its replacement is
// missing: it is the last complete one.
func leftover(dir, name string) bool {
	if replaced.MatchString(name) {
		_, err := os.Stat(filepath.Join(dir, strings.TrimSuffix(name, ".old")))
		return err == nil
	}
	return unfinished.MatchString(name)
}
