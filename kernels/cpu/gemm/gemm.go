// Package gemm multiplies matrices for the CPU device: every output element is one chain of the definition's dot steps over ascending k,
// whatever the tile, the instruction set or the number of threads. It imports kernels and nothing else of the project.
package gemm

import (
	"fmt"

	"lockstep/kernels"
)

// View is a matrix of fp32 values: element (i, j) is X[i*RS+j*CS].
type View struct {
	X      []float32
	RS, CS int
}

// Engine multiplies by one dot step with one instruction set. It has no state: any number of goroutines may share it.
type Engine struct {
	dot kernels.DotMode
}

// Scratch is a goroutine's memory for packed operands. It grows to what its largest product needs. The zero value is ready.
type Scratch struct {
	part []float32 // fp32 chains of a tile whose destination cannot hold them
}

// New is an engine for an instruction set of the CPU device, "avx512", "avx2" or "portable", which the machine must have.
func New(isa string, dot kernels.DotMode) *Engine {
	switch isa {
	case "avx512", "avx2", "portable":
		return &Engine{dot: dot}
	}
	panic(fmt.Sprintf("gemm: no instruction set %q", isa))
}

// Tile continues chains: c[i*ldc+j], i < m, j < n, is the dot chain over ascending k of a(i,k)*b(k,j) started from c[i*ldc+j].
// It runs on the calling goroutine. Steps of DotTC16 start at k = 0, and its operands hold exact bf16 values.
func (e *Engine) Tile(s *Scratch, c []float32, ldc, m, n, k int, a, b View) {
	e.block(s, c, ldc, m, n, k, Operand{F: a.X, RS: a.RS, CS: a.CS}, Operand{F: b.X, RS: b.RS, CS: b.CS})
}

// block is Tile for operands of any storage type.
func (e *Engine) block(_ *Scratch, c []float32, ldc, m, n, k int, a, b Operand) {
	for i := range m {
		for j := range n {
			if e.dot == kernels.DotTC16 {
				c[i*ldc+j] = chain16(c[i*ldc+j], i, j, k, a, b)
			} else {
				c[i*ldc+j] = chainFMA(c[i*ldc+j], i, j, k, a, b)
			}
		}
	}
}

func chainFMA(acc float32, i, j, k int, a, b Operand) float32 {
	for l := range k {
		acc = kernels.FMA(a.at(i, l), b.at(l, j), acc)
	}
	return acc
}

func chain16(acc float32, i, j, k int, a, b Operand) float32 {
	for from := 0; from < k; from += steps {
		var x, y [steps]float32
		for l := from; l < min(k, from+steps); l++ {
			x[l-from], y[l-from] = a.at(i, l), b.at(l, j)
		}
		acc = Step16(acc, &x, &y)
	}
	return acc
}
