package train

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"lockstep/data/atomicfile"
	"lockstep/train/runlog"
)

// writeSums writes the SHA-256 of all files of a checkpoint. Any bit of them, and of the sums themselves, that is
// another one later is noticed by [checkSums].
func writeSums(dir string) error {
	files, err := sums(dir)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&text, "%s  %s\n", files[name], name)
	}
	return runlog.WriteFile(filepath.Join(dir, sumsFile), []byte(text.String()))
}

// checkSums returns the SHA-256 of all files of a checkpoint, by path, if all are as they were written.
func checkSums(dir string) (map[string]string, error) {
	text, err := atomicfile.Read(filepath.Join(dir, sumsFile))
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for i, line := range strings.SplitAfter(string(text), "\n") {
		if line == "" {
			continue
		}
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !ok || !strings.HasSuffix(line, "\n") || len(sum) != 2*sha256.Size || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s, line %d: want a SHA-256, two spaces and a path", sumsFile, i+1)
		}
		files[name] = sum
	}
	if _, ok := files[stateFile]; !ok {
		return nil, fmt.Errorf("%s does not name %s", sumsFile, stateFile)
	}
	for name, want := range files {
		got, err := fileSum(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("%s has a different checksum than when it was written", name)
		}
	}
	return files, nil
}

// sums is the SHA-256 of every file below a folder, by path, but for SHA256SUMS.
func sums(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == sumsFile {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(rel)], err = fileSum(path)
		return err
	})
	return files, err
}

func fileSum(path string) (string, error) {
	f, err := atomicfile.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
