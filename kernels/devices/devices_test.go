package devices

import (
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/broken"
)

// A device computes by the definition that it was opened with, whatever its threads and instruction set.
func TestOpen(t *testing.T) {
	def := Definition(CPU)
	def.KeySplit = 512
	dev, err := Open(Config{Kind: CPU, ISA: "portable", Threads: 1, Definition: def})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if got := dev.Definition(); got != def {
		t.Errorf("computes by %+v, want %+v", got, def)
	}
}

// Each kind of device computes by its own dot step and exp2 unless another is asked for.
func TestDefinition(t *testing.T) {
	card, host := Definition(CUDA), Definition(CPU)
	if card.Dot != kernels.DotTC16 || card.Exp2 != kernels.Exp2Ex2h {
		t.Errorf("a GPU computes by %+v", card)
	}
	if host != kernels.Default() || host.Dot != kernels.DotFMA || host.Exp2 != kernels.Exp2Poly {
		t.Errorf("the CPU computes by %+v", host)
	}
}

// An error names what is wrong and what would do.
func TestOpenErrors(t *testing.T) {
	def := Definition(CPU)
	odd := def
	odd.KeySplit = 1
	for want, c := range map[string]Config{
		"device tpu: want cpu or cuda": {Kind: "tpu", Definition: def},
		"device cpu: key_split":        {Kind: CPU, Definition: odd},
		"device cpu: ":                 {Kind: CPU, ISA: "mmx", Definition: def},
		"split-k":                      {Kind: CPU, Definition: def, Break: "nothing"},
		"device cuda: ":                {Kind: CUDA, Definition: def}, // no GPU, or not its dot products
	} {
		dev, err := Open(c)
		if err == nil {
			dev.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", c, err, want)
		}
	}
}

// Ranks on the CPU share its threads, and are one device where there is one rank.
func TestOpenRanks(t *testing.T) {
	for _, c := range []struct {
		threads, ranks int
		want           string
	}{{4, 1, "4 threads"}, {4, 2, "2 threads"}, {4, 3, "1 threads"}, {1, 2, "1 threads"}} {
		on := Config{Kind: CPU, Threads: c.threads, Definition: Definition(CPU)}
		list, closeAll, err := OpenRanks(on, c.ranks, false)
		if err != nil || len(list) != c.ranks {
			t.Fatalf("%d devices, error %v", len(list), err)
		}
		for _, dev := range list {
			if !strings.Contains(dev.Name(), c.want) {
				t.Errorf("%d threads for %d ranks: %s, want %s", c.threads, c.ranks, dev.Name(), c.want)
			}
		}
		if err := closeAll(); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []Config{{Kind: CPU, ISA: "mmx", Definition: Definition(CPU)},
		{Kind: CUDA, Definition: Definition(CPU)}} { // no GPU, or not its dot products
		list, _, err := OpenRanks(c, 9, false)
		if err == nil || list != nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, error %v, want one line", c, list, err)
		}
	}
}

// A device that breaks a rule says so in its definition, and keeps to the rest.
func TestOpenBroken(t *testing.T) {
	def := Definition(CPU)
	def.KeySplit = 512
	dev, err := Open(Config{Kind: CPU, Definition: def, Break: kernels.BreakRope})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	def.Break = kernels.BreakRope
	if _, ok := dev.(*broken.Device); !ok || dev.Definition() != def {
		t.Errorf("%T computes by %+v", dev, dev.Definition())
	}
}

func TestList(t *testing.T) {
	lines, err := List()
	if err != nil || len(lines) < 2 || !strings.HasPrefix(lines[0], "cpu") {
		t.Errorf("%q (%v)", lines, err)
	}
}

// The CPU has no gauge, which is no error.
func TestOpenGauges(t *testing.T) {
	if g, err := OpenGauges(CPU, 1); g != nil || err != nil {
		t.Errorf("gauge %v, error %v", g, err)
	}
}

// Kernels of an architecture that there is none of are refused, and all by a build without CUDA.
func TestPrepareErrors(t *testing.T) {
	if line, err := Prepare(Definition(CUDA), "sm_70"); err == nil || !strings.Contains(err.Error(), "device cuda: ") {
		t.Errorf("%q, error %v", line, err)
	}
}
