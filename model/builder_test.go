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
	if require[kernels.Device](b, "anything"); b.lacking() != nil {
		t.Error(b.lacking())
	}
	if require[absent](b, "absence"); b.lacking() == nil || !strings.Contains(b.lacking().Error(), "cpu") || !strings.Contains(b.lacking().Error(), "does not compute absence yet") {
		t.Errorf("lacking: %v", b.lacking())
	}
	described := &builder{}
	if require[absent](described, "absence"); described.lacking() != nil {
		t.Error(described.lacking())
	}
}
