package data

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"path/filepath"
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
	err := AtomicFile(path, func(w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte{1}, 1<<17)) // fits into the buffer
		return err
	})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	checkError(t, err, path, "file too large")
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
	if err := AtomicFile(link, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if text, _ := os.ReadFile(real); err != nil || info.Mode()&os.ModeSymlink == 0 || string(text) != "new" {
		t.Errorf("%v, the file behind it holds %q (%v)", info, text, err)
	}
}
