// Package gemm multiplies matrices for the CPU device: every output element is one chain of the definition's dot steps
// over ascending k, whatever the tile, the instruction set or the number of threads. It imports kernels and
// kernels/cpu/vec, nothing else of the project.
package gemm

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/vec"
)

// View is a matrix of fp32 values: element (i, j) is X[i*RS+j*CS].
type View struct {
	X      []float32
	RS, CS int
}

// Engine multiplies by one dot step with one instruction set. It has no state: any number of goroutines may share it.
type Engine struct {
	dot kernels.DotMode
	set *set
	vec *vec.Ops
}

// Scratch is a goroutine's memory for packed operands. It grows to what its largest product needs. The zero value is
// ready.
type Scratch struct {
	a, b   []float32 // packed rows of A and panels of B
	codes  []float32 // the numbers of codes, before they are packed
	scales []float32 // of those codes
	edge   []float32 // a tile that extends beyond C
	part   []float32 // fp32 chains of a C that is stored in bf16
	block  []float32 // chains over a block of codes
	split  split
	panels []panel
}

// New is an engine for an instruction set of the CPU device, "avx512", "avx2" or "portable", which the machine must
// have.
func New(isa string, dot kernels.DotMode) *Engine {
	return &Engine{dot: dot, set: setOf(isa), vec: vec.New(isa, kernels.Exp2Poly)}
}

// Tile continues chains: c[i*ldc+j], i < m, j < n, is the dot chain over ascending k of a(i,k)*b(k,j) started from
// c[i*ldc+j]. It runs on the calling goroutine. Steps of DotTC16 start at k = 0, and its operands hold exact bf16
// values.
func (e *Engine) Tile(s *Scratch, c []float32, ldc, m, n, k int, a, b View) {
	x, y := Operand{F: a.X, RS: a.RS, CS: a.CS}, Operand{F: b.X, RS: b.RS, CS: b.CS}
	mustHold("a", x, m, k)
	mustHold("b", y, k, n)
	mustHold("c", Operand{F: c, RS: ldc, CS: 1}, m, n)
	e.block(s, c, ldc, m, n, k, x, y, false)
}

// block continues the chains of c, [m, n], over k, or starts them from +0 if fresh.
func (e *Engine) block(s *Scratch, c []float32, ldc, m, n, k int, a, b Operand, fresh bool) {
	if m == 0 || n == 0 || k == 0 {
		return
	}
	if a.Q != nil {
		e.fp8x128(s, c, ldc, m, n, k, a, b, fresh)
		return
	}
	if e.dot == kernels.DotTC16 {
		e.tc16(s, c, ldc, m, n, k, a, b, fresh)
		return
	}
	e.fma(s, c, ldc, m, n, k, a, b, fresh)
}

// mustHold panics if o has no room for [rows, cols]: assembly would read beyond it.
func mustHold(name string, o Operand, rows, cols int) {
	if rows == 0 || cols == 0 {
		return
	}
	if last := (rows-1)*o.RS + (cols-1)*o.CS; rows < 0 || cols < 0 || o.RS < 0 || o.CS < 0 ||
		last >= o.elements() {
		panic(fmt.Sprintf("gemm: %s [%d, %d] with strides %d, %d in %d elements", name, rows, cols, o.RS, o.CS,
			o.elements()))
	}
}
