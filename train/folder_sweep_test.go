package train

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// files are all files and folders below dir.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); rel != "." {
			all = append(all, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What a killed run leaves goes when it is resumed; what is whole, and what is the user's, stays.
func TestSweep(t *testing.T) {
	out := t.TempDir()
	stay := []string{
		".git/config", ".gitignore", ".lock", ".notes.tmp", "checkpoints/step-00000010/a",
		"checkpoints/step-00000020.old/a", "metrics.jsonl", "model/a", "notes.old/a", "start/a",
	}
	leave := []string{
		".metrics.jsonl.0123456789abcdef.tmp", ".model/a", ".start/a", "checkpoints/.step-00000030/a",
		"checkpoints/step-00000010.old/a", "model.old/a",
	}
	for _, name := range slices.Concat(stay, leave) {
		path := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeUnfinished(out); err != nil {
		t.Fatal(err)
	}
	got := slices.DeleteFunc(files(t, out), func(name string) bool {
		info, err := os.Stat(filepath.Join(out, name))
		return err != nil || info.IsDir()
	})
	if !slices.Equal(got, stay) {
		t.Errorf("left %q, want %q", got, stay)
	}
}
