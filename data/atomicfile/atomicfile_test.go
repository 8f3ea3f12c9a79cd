package atomicfile

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A disk that is full when the last buffer is written, and not before, leaves the old file. The limit on the size of
// files stands in for it.
func TestAtomicFileFullAtTheEnd(t *testing.T) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 16, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err := Write(path, func(w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte{1}, 1<<17)) // fits into the buffer
		return err
	})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "file too large") {
		t.Errorf("%v, want an error that names %s and says that the file is too large", err, path)
	}
	listed, err := os.ReadDir(filepath.Dir(path))
	if text, _ := os.ReadFile(path); err != nil || len(listed) != 1 || string(text) != "old" {
		t.Errorf("left %v, %d bytes (%v)", listed, len(text), err)
	}
}

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
