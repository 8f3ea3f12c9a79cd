package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The committed files are what the generator writes.
func TestFilesAreFresh(t *testing.T) {
	for name, want := range generate() {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is stale: run go generate ./kernels/cpu/vec", name)
		}
	}
}

// Values take the lowest free register, one whose last use is past is free again, and constants stay where they are
// fixed.
func TestAllocation(t *testing.T) {
	m := &isa{lanes: 8, reg: "Y", free: 3}
	b := &block{m: m, slices: map[string]string{"x": "(SI)", "y": "(DI)"}, kinds: map[string]string{},
		inits: map[string]*value{}}
	one := b.shared("ONE {d}")
	b.store("y", b.add(b.mul(b.load("x"), one), b.load("x")))
	got, ok := b.text(map[*value]int{one: 2})
	want := "\tVMOVUPS (SI), Y0\n\tVMULPS Y2, Y0, Y0\n\tVMOVUPS (SI), Y1\n\tVADDPS Y1, Y0, Y0\n\tVMOVUPS Y0, (DI)\n"
	if !ok || got != want {
		t.Errorf("fixed constant: %v, got\n%swant\n%s", ok, got, want)
	}
	if got, ok = b.text(nil); !ok || got != "\tVMOVUPS (SI), Y0\n\tONE Y1\n"+"\tVMULPS Y1, Y0, Y0\n\tVMOVUPS (SI), "+
		"Y1\n\tVADDPS Y1, Y0, Y0\n\tVMOVUPS Y0, (DI)\n" {
		t.Errorf("constant loaded where used: %v, got\n%s", ok, got)
	}
	m.free = 1
	if got, ok := b.text(nil); ok {
		t.Errorf("one register suffices for two values:\n%s", got)
	}
}
