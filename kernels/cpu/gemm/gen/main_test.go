package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The committed files must be what the generator writes.
func TestFilesAreFresh(t *testing.T) {
	for name, text := range generate() {
		b, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != text {
			t.Errorf("%s is stale: go generate ./kernels/cpu/gemm", name)
		}
	}
}
