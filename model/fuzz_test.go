package model_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/model"
)

// No config.json makes Describe panic or takes it long, and what is refused is refused in one line.
func FuzzDescribe(f *testing.F) {
	files, err := filepath.Glob("testdata/*/config.json")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := model.Describe(text, kernels.BF16)
		switch {
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("more than a line: %v", err)
		case err == nil && (len(m.Blocks) == 0 || m.Vocab <= 0):
			t.Errorf("accepted: %d blocks, vocabulary %d", len(m.Blocks), m.Vocab)
		}
	})
}
