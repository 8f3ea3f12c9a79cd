//go:build unix

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
