package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"", "text"} {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err != nil || string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	}
	for path, want := range map[string]string{os.DevNull: "not a regular file", t.TempDir(): "is a folder"} {
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if err := os.Truncate(path, 1<<30+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "has 1073741825 bytes") {
		t.Errorf("%v", err)
	}
}
