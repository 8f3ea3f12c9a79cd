package model

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// A device that lacks what a family requires is refused in one line; a description needs no device.
func TestRequire(t *testing.T) {
	type absent interface{ Absent() }
	dev, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	b := &builder{dev: dev}
	if require[kernels.Device](b, "anything"); b.refusal != nil {
		t.Error(b.refusal)
	}
	if require[absent](b, "absence"); b.refusal == nil || !strings.Contains(b.refusal.Error(), "cpu") ||
		!strings.Contains(b.refusal.Error(), "does not compute absence yet") {
		t.Errorf("lacking: %v", b.refusal)
	}
	described := &builder{}
	if require[absent](described, "absence"); described.refusal != nil {
		t.Error(described.refusal)
	}
}

// latentReader is a device whose sparse attention reads the latent alone, as a GPU's.
type latentReader struct{ *cpu.Device }

func (latentReader) CheckSparseAttention(a kernels.Attn, _ kernels.Index) error {
	if a.KVHeads > 1 {
		return errors.New("reads the latent alone")
	}
	return nil
}

// A device is asked for the form of latent attention that its definition says, before any weight is read.
func TestLatentRefused(t *testing.T) {
	config, err := os.ReadFile("testdata/glm5/config.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // without weights
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	for form, want := range map[kernels.LatentForm]string{kernels.LatentAuto: "safetensors",
		kernels.LatentAbsorbed: "safetensors", kernels.LatentExpanded: "reads the latent alone"} {
		def := kernels.Default()
		def.Latent = form
		dev, err := cpu.New(def, cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := LoadFolder(latentReader{dev}, dir, "", Options{}); err == nil ||
			strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", form, err, want)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
}
