package main

import (
	"fmt"
	"strings"
)

// isa is an instruction set: its vector registers and the shapes of its micro-kernels.
type isa struct {
	file, suffix string
	register     string // Z or Y
	lanes        int    // fp32 values in a register
	registers    int
	shapes       []shape
	masks        bool // loads may be masked
}

// shape is a family of micro-kernels: 1..rows rows by vectors registers of columns.
type shape struct{ rows, vectors int }

// Accumulators, the vectors of B and at least one broadcast value of A must fit into the registers; 8 accumulators hide
// the latency of an FMA. Wide shapes serve few rows, where only more columns give independent chains.
var (
	avx512 = &isa{file: "avx512", suffix: "AVX512", register: "Z", lanes: 16, registers: 32, masks: true,
		shapes: []shape{{14, 1}, {14, 2}, {6, 4}}}
	avx2 = &isa{file: "avx2", suffix: "AVX2", register: "Y", lanes: 8, registers: 16, shapes: []shape{{6, 1}, {6, 2},
		{2, 4}}}
)

const (
	widthF32  = 4
	widthBF16 = 2
)

func (m *isa) bytes() int { return 4 * m.lanes }

func (m *isa) reg(i int) string { return fmt.Sprintf("%s%d", m.register, i) }

// kernel is the name of a micro-kernel.
func (m *isa) kernel(rows, vectors int) string {
	return fmt.Sprintf("fma%dx%d%s", rows, vectors, m.suffix)
}

// writer collects the lines of an assembly file.
type writer struct {
	*isa
	text      strings.Builder
	constants []string // of a function, by register from the last one down
	rounded   int      // places where it rounds to bf16
}

func (w *writer) line(format string, args ...any) {
	fmt.Fprintf(&w.text, format+"\n", args...)
}

// code is an instruction.
func (w *writer) code(format string, args ...any) { w.line("\t"+format, args...) }

func (w *writer) label(name string) { w.line("\n%s:", name) }

// function opens an assembly function.
func (w *writer) function(name, signature string, argBytes int) {
	w.line("// func %s%s\nTEXT ·%s(SB), NOSPLIT, $0-%d", name, signature, name, argBytes)
}

// end closes it.
func (w *writer) end() {
	w.code("VZEROUPPER")
	w.code("RET\n")
}
