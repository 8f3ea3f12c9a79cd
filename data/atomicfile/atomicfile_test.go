package atomicfile

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A link stays one: what it leads to is replaced.
func TestAtomicFileThroughLink(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(real, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", link); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if text, _ := os.ReadFile(real); err != nil || info.Mode()&os.ModeSymlink == 0 || string(text) != "new" {
		t.Errorf("%v, the file behind it holds %q (%v)", info, text, err)
	}
}

// What is no regular file stays what it is, and a link leads to its file.
func TestReplaceable(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Symlink(os.DevNull, at("device")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("there", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("there"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"": "no name", dir: "is a folder", at("device"): "not a regular file"} {
		if _, err := replaceable(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
	for path, want := range map[string]string{at("link"): at("there"), at("new"): at("new")} {
		if got, err := replaceable(path); err != nil || got != want {
			t.Errorf("%q leads to %q, want %q (%v)", path, got, want, err)
		}
	}
}
