package main

import (
	"fmt"
	"strings"
)

const (
	kernelSignature = "(k int, a *float32, as int, b *float32, bs int, c *float32, cs int, fresh bool)"
	kernelArgBytes  = 57
	unroll          = 4 // steps of k in the body of a loop
)

// kernels writes every micro-kernel. A broadcast value of A meets each vector of B in one row of accumulators; the
// macros say so once for each number of vectors.
func (w *writer) kernels() {
	for _, s := range w.shapes {
		w.rowMacro(s.vectors)
	}
	for _, s := range w.shapes {
		for rows := 1; rows <= s.rows; rows++ {
			w.fma(rows, s.vectors)
		}
	}
}

// The last registers hold a broadcast value of A, and before it the vectors of B.
func (w *writer) broadcast() string { return w.reg(w.registers - 1) }

func (w *writer) vectorB(v, vectors int) string { return w.reg(w.registers - 1 - vectors + v) }

func (w *writer) rowMacro(vectors int) {
	var params []string
	for v := range vectors {
		params = append(params, fmt.Sprintf("c%d", v))
	}
	w.line("// ROW%d adds the value of A at x times the vectors of B to a row of accumulators.", vectors)
	text := fmt.Sprintf("#define ROW%d(x, %s) \\\n\tVBROADCASTSS x, %s", vectors, strings.Join(params, ", "),
		w.broadcast())
	for v, c := range params {
		text += fmt.Sprintf("; \\\n\tVFMADD231PS %s, %s, %s", w.vectorB(v, vectors), w.broadcast(), c)
	}
	w.line("%s\n", text)
}

// Registers: AX, BX, DX rows 0, 5 and 10 of A; R8, R10 its stride and three times that; SI a row of B; R9, R11 its
// stride and three times that; CX steps left; DI, R12 a row of C and the stride.
var rowPointers = []string{"AX", "BX", "DX"}

const rowsOfPointer = 5

// rowA is the address of row i of A, `bytes` further.
func rowA(i, bytes int) string {
	index := []string{"", "(R8*1)", "(R8*2)", "(R10*1)", "(R8*4)"}[i%rowsOfPointer]
	return fmt.Sprintf("%d(%s)%s", bytes, rowPointers[i/rowsOfPointer], index)
}

// rowB is the address of row u of B, `bytes` further.
func rowB(u, bytes int) string {
	return fmt.Sprintf("%d(SI)%s", bytes, []string{"", "(R9*1)", "(R9*2)", "(R11*1)"}[u])
}

func (w *writer) fma(rows, vectors int) {
	name := w.kernel(rows, vectors)
	w.function(name, kernelSignature, kernelArgBytes)
	w.code("MOVQ k+0(FP), CX")
	w.code("MOVQ a+8(FP), AX")
	w.code("MOVQ as+16(FP), R8")
	w.code("MOVQ b+24(FP), SI")
	w.code("MOVQ bs+32(FP), R9")
	w.code("MOVQ c+40(FP), DI")
	w.code("MOVQ cs+48(FP), R12")
	for _, r := range []string{"R8", "R9", "R12"} {
		w.code("SHLQ $2, %s", r)
	}
	w.code("LEAQ (R8)(R8*2), R10")
	w.code("LEAQ (R9)(R9*2), R11")
	pointers := rowPointers[:(rows+rowsOfPointer-1)/rowsOfPointer]
	for i := 1; i < len(pointers); i++ {
		w.code("LEAQ (%s)(R8*4), %s", pointers[i-1], pointers[i])
		w.code("ADDQ R8, %s", pointers[i])
	}
	w.start(rows, vectors)

	w.label("enter")
	w.code("SUBQ $%d, CX", unroll)
	w.code("JLT  rest")
	w.label("body")
	for u := range unroll {
		w.step(rows, vectors, u)
	}
	for _, p := range pointers {
		w.code("ADDQ $%d, %s", 4*unroll, p)
	}
	w.code("LEAQ (SI)(R9*4), SI")
	w.code("SUBQ $%d, CX", unroll)
	w.code("JGE  body")

	w.label("rest")
	w.code("ADDQ $%d, CX", unroll)
	w.code("JEQ  done")
	w.label("single")
	w.step(rows, vectors, 0)
	for _, p := range pointers {
		w.code("ADDQ $4, %s", p)
	}
	w.code("ADDQ R9, SI")
	w.code("DECQ CX")
	w.code("JNE  single")

	w.label("done")
	w.eachC(rows, vectors, func(acc, at string) { w.code("VMOVUPS %s, %s", acc, at) })
	w.end()
}

// start loads the accumulators from C, or clears them.
func (w *writer) start(rows, vectors int) {
	w.code("MOVBLZX fresh+56(FP), R13")
	w.code("TESTL R13, R13")
	w.code("JNE   clear")
	w.eachC(rows, vectors, func(acc, at string) { w.code("VMOVUPS %s, %s", at, acc) })
	w.code("MOVQ c+40(FP), DI")
	w.code("JMP  enter")
	w.label("clear")
	for i := range rows * vectors {
		acc := w.reg(i)
		if w.masks {
			w.code("VPXORD %s, %s, %s", acc, acc, acc)
		} else {
			w.code("VXORPS %s, %s, %s", acc, acc, acc)
		}
	}
}

func (w *writer) eachC(rows, vectors int, f func(acc, at string)) {
	for i := range rows {
		for v := range vectors {
			f(w.reg(i*vectors+v), fmt.Sprintf("%d(DI)", v*w.bytes()))
		}
		if i < rows-1 {
			w.code("ADDQ R12, DI")
		}
	}
}

// step is one k of every chain.
func (w *writer) step(rows, vectors, u int) {
	for v := range vectors {
		w.code("VMOVUPS %s, %s", rowB(u, v*w.bytes()), w.vectorB(v, vectors))
	}
	for i := range rows {
		var acc []string
		for v := range vectors {
			acc = append(acc, w.reg(i*vectors+v))
		}
		w.code("ROW%d(%s, %s)", vectors, rowA(i, 4*u), strings.Join(acc, ", "))
	}
}
