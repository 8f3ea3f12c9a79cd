package model

import (
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
	if require[absent](b, "absence"); b.refusal == nil || !strings.Contains(b.refusal.Error(), "cpu") || !strings.Contains(b.refusal.Error(), "does not compute absence yet") {
		t.Errorf("lacking: %v", b.refusal)
	}
	described := &builder{}
	if require[absent](described, "absence"); described.refusal != nil {
		t.Error(described.refusal)
	}
}
