package main

import "fmt"

// The steps of fp8x32 for AVX-512, over the operands of the steps of DotTC16.
const (
	products32 = 32
	termBits32 = "0x41500000" // 13
	keptBits32 = "0xfffffc00" // of an fp32 with 13 fraction bits
)

// steps32 writes the kernel of some rows. No sum of E4M3 products is too large for it.
func (w *writer) steps32(rows int) {
	w.function(fmt.Sprintf("steps32x%d%s", rows, w.suffix), stepsSignature, stepsArgBytes)
	w.constant(termBits32, "Z4")
	w.constant(keptBits32, "Z6")
	w.beginSteps(rows)
	for r := range rows {
		w.step32Row(r)
	}
	w.nextStep(products32)
	w.code("MOVB $1, ret+72(FP)")
	w.endSteps(rows)
}

// step32Row is one step of row r: the largest exponent to Z9, the terms scaled to integers and added in Z14 and Z15, 21
// bits at most.
func (w *writer) step32Row(r int) {
	w.line("\n\t// row %d", r)
	w.code("VGETEXPPS Z%d, Z8", r)
	w.code("VMAXPS Z8, Z5, Z9")
	w.exponents(r, 0)
	w.largest16()
	w.exponents(r, 16)
	for k := range 16 {
		w.code("VMAXPS Z%d, Z%d, Z%d", 16+k, 10+k%4, 10+k%4)
	}
	w.unit(r)
	w.terms(r, 16)
	w.exponents(r, 0)
	w.terms(r, 0)
	w.code("VPADDD Z14, Z15, Z15")
	w.code("VCVTDQ2PS Z15, Z15")
	w.code("VPANDD Z6, Z15, Z15")
	w.code("VSCALEFPS Z9, Z15, Z%d", r)
}

// exponents writes those of 16 products, from one on, to Z16-Z31.
func (w *writer) exponents(r, first int) {
	for k := range 16 {
		w.code("VMOVUPS %d(DX), Z%d", 64*(first+k), 16+k)
		w.code("VADDPS.BCST %s, Z%d, Z%d", rowOf("BX", "R8", "R10", r, 4*(first+k)), 16+k, 16+k)
	}
}

// terms adds 16 products, whose exponents are in Z16-Z31.
func (w *writer) terms(r, first int) {
	for k := range 16 {
		t := 10 + k%4
		w.code("VMOVUPS %d(SI), Z%d", 64*(first+k), t)
		w.code("VSUBPS Z9, Z%d, Z%d", 16+k, 16+k)
		w.code("VMULPS.BCST %s, Z%d, Z%d", rowOf("AX", "R8", "R10", r, 4*(first+k)), t, t)
		w.code("VSCALEFPS Z%d, Z%d, Z%d", 16+k, t, t)
		w.code("VCVTTPS2DQ Z%d, Z%d", t, t)
		w.code("VPADDD Z%d, Z%d, Z%d", t, 14+k%2, 14+k%2)
	}
}
