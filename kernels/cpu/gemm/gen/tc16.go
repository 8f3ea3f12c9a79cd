package main

import "fmt"

// The steps of DotTC16 for AVX-512: 16 columns of one to four rows at a time. A significand in [1, 2) and an exponent
// are fp32 values; the exponent of zero is -Inf, with which its terms scale to zero.
const (
	splitSignature = "(significand, exponent *uint32, x *float32, n int) bool"
	splitArgBytes  = 33
	stepsSignature = "(steps int, as, ae *uint32, ar int, bs, be *uint32, c *float32, cs int, fresh bool) bool"
	stepsArgBytes  = 73
	stepsRows      = 4
	stepK          = 16
	termBits       = "0x41c80000" // 25
	lowest         = "0xc47a0000" // -1000, below the exponent of any product
	largest        = "0x42fe0000" // 127
	beyond         = "0x43000000" // 128, reached by Inf; a NaN's exponent is NaN
)

func (w *writer) constant(bits, reg string) {
	w.code("MOVL $%s, AX", bits)
	w.code("VPBROADCASTD AX, %s", reg)
}

// split writes significands and exponents of n values, a multiple of 16, and returns whether all are finite.
func (w *writer) split() {
	w.function("split16"+w.suffix, splitSignature, splitArgBytes)
	w.constant(beyond, "Z3")
	w.code("MOVQ significand+0(FP), DI")
	w.code("MOVQ exponent+8(FP), DX")
	w.code("MOVQ x+16(FP), SI")
	w.code("MOVQ n+24(FP), CX")
	w.code("KXORW K1, K1, K1")
	w.label("vector")
	w.code("VMOVUPS (SI), Z0")
	w.code("VGETMANTPS $0, Z0, Z1")
	w.code("VGETEXPPS Z0, Z2")
	w.code("VCMPPS $5, Z3, Z2, K2") // not less than
	w.code("KORW K2, K1, K1")
	w.code("VMOVUPS Z1, (DI)")
	w.code("VMOVUPS Z2, (DX)")
	for _, r := range []string{"SI", "DI", "DX"} {
		w.code("ADDQ $64, %s", r)
	}
	w.code("SUBQ $16, CX")
	w.code("JGT  vector")
	w.code("KORTESTW K1, K1")
	w.code("SETEQ ret+32(FP)")
	w.end()
}

// steps writes the kernel of some rows. It returns false, and leaves c as it was, if an accumulator reached 2^127 on
// its way or is not finite; the scalar step knows what to do then.
func (w *writer) steps(rows int) {
	w.function(fmt.Sprintf("steps%d%s", rows, w.suffix), stepsSignature, stepsArgBytes)
	w.constant(termBits, "Z4")
	w.constant(largest, "Z6")
	w.code("KXORW K1, K1, K1")
	w.beginSteps(rows)
	for r := range rows {
		w.stepRow(r)
	}
	w.nextStep(stepK)
	for r := range rows {
		w.reached(r)
	}
	w.code("KORTESTW K1, K1")
	w.code("SETEQ ret+72(FP)")
	w.code("JNE  done")
	for r := range rows {
		w.code("VADDPS Z7, Z%d, Z%d", r, r) // -0 becomes +0
	}
	w.endSteps(rows)
}

// beginSteps loads a kernel's operands and accumulators and begins its loop. Z5 is lowest and Z7 zero.
func (w *writer) beginSteps(rows int) {
	w.constant(lowest, "Z5")
	w.code("VPXORD Z7, Z7, Z7")
	w.code("MOVQ steps+0(FP), CX")
	w.code("MOVQ as+8(FP), AX")
	w.code("MOVQ ae+16(FP), BX")
	w.code("MOVQ ar+24(FP), R8")
	w.code("MOVQ bs+32(FP), SI")
	w.code("MOVQ be+40(FP), DX")
	w.code("MOVQ c+48(FP), DI")
	w.code("MOVQ cs+56(FP), R12")
	w.code("SHLQ $2, R8")
	w.code("SHLQ $2, R12")
	w.code("LEAQ (R8)(R8*2), R10")
	w.code("LEAQ (R12)(R12*2), R13")
	for r := range rows {
		w.code("VPXORD Z%d, Z%d, Z%d", r, r, r)
	}
	w.code("MOVBLZX fresh+64(FP), R9")
	w.code("TESTL R9, R9")
	w.code("JNE  step")
	for r := range rows {
		w.code("VMOVUPS %s, Z%d", rowOf("DI", "R12", "R13", r, 0), r)
	}
	w.label("step")
}

// nextStep ends the loop, a round of which has so many products.
func (w *writer) nextStep(products int) {
	w.code("ADDQ $%d, AX", 4*products)
	w.code("ADDQ $%d, BX", 4*products)
	w.code("ADDQ $%d, SI", 64*products)
	w.code("ADDQ $%d, DX", 64*products)
	w.code("DECQ CX")
	w.code("JNE  step")
}

// endSteps stores the accumulators.
func (w *writer) endSteps(rows int) {
	for r := range rows {
		w.code("VMOVUPS Z%d, %s", r, rowOf("DI", "R12", "R13", r, 0))
	}
	w.label("done")
	w.end()
}

// rowOf is the address of row r from base, `bytes` further; index registers hold the stride and three times the stride.
func rowOf(base, stride, stride3 string, r, bytes int) string {
	index := []string{"", "(" + stride + "*1)", "(" + stride + "*2)", "(" + stride3 + "*1)"}[r]
	return fmt.Sprintf("%d(%s)%s", bytes, base, index)
}

// reached leaves an accumulator's exponent in Z8 and notes one of 127 and above in K1.
func (w *writer) reached(r int) {
	w.code("VGETEXPPS Z%d, Z8", r)
	w.code("VCMPPS $5, Z6, Z8, K2") // not less than
	w.code("KORW K2, K1, K1")
}

// stepRow is one step of row r: exponents of the products to Z16-Z31, the largest to Z9, the terms scaled to integers
// and added.
func (w *writer) stepRow(r int) {
	w.line("\n\t// row %d", r)
	w.reached(r)
	for k := range stepK {
		w.code("VMOVUPS %d(DX), Z%d", 64*k, 16+k)
		w.code("VADDPS.BCST %s, Z%d, Z%d", rowOf("BX", "R8", "R10", r, 4*k), 16+k, 16+k)
	}
	w.code("VMAXPS Z8, Z5, Z9")
	w.largest16()
	w.unit(r)
	for k := range stepK {
		t := 10 + k%4
		w.code("VMOVUPS %d(SI), Z%d", 64*k, t)
		w.code("VSUBPS Z9, Z%d, Z%d", 16+k, 16+k)
		w.code("VMULPS.BCST %s, Z%d, Z%d", rowOf("AX", "R8", "R10", r, 4*k), t, t)
		w.code("VSCALEFPS Z%d, Z%d, Z%d", 16+k, t, t)
		w.code("VCVTTPS2DQ Z%d, Z%d", t, t)
		w.code("VPADDD Z%d, Z%d, Z%d", t, 14+k%2, 14+k%2) // eight products fill 30 bits
	}
	w.sum(r)
}

// largest16 brings the largest exponents of Z16 to Z31 to Z10, Z11, Z12 and Z13.
func (w *writer) largest16() {
	for i := range 4 { // four chains
		w.code("VMAXPS Z%d, Z%d, Z%d", 16+i, 20+i, 10+i)
	}
	for k := 8; k < stepK; k++ {
		w.code("VMAXPS Z%d, Z%d, Z%d", 16+k, 10+k%4, 10+k%4)
	}
}

// unit puts the unit of a step's terms, by the largest exponent of Z9 to Z13, to Z9, and begins their sums: what row r
// has so far in that unit in Z15, 0 in Z14.
func (w *writer) unit(r int) {
	w.code("VMAXPS Z10, Z11, Z10")
	w.code("VMAXPS Z12, Z13, Z12")
	w.code("VMAXPS Z10, Z9, Z9")
	w.code("VMAXPS Z12, Z9, Z9")
	w.code("VSUBPS Z4, Z9, Z9")
	w.code("VPXORD Z14, Z14, Z14")
	w.code("VSUBPS Z9, Z7, Z8")
	w.code("VSCALEFPS Z8, Z%d, Z15", r)
	w.code("VCVTTPS2DQ Z15, Z15")
}

// sum adds the integers of Z14 and Z15 in fp64, exactly, and truncates to fp32.
func (w *writer) sum(r int) {
	w.code("VEXTRACTI64X4 $1, Z14, Y12")
	w.code("VEXTRACTI64X4 $1, Z15, Y13")
	w.code("VCVTDQ2PD Y14, Z10")
	w.code("VCVTDQ2PD Y15, Z11")
	w.code("VCVTDQ2PD Y12, Z12")
	w.code("VCVTDQ2PD Y13, Z13")
	w.code("VADDPD Z10, Z11, Z10")
	w.code("VADDPD Z12, Z13, Z12")
	w.code("VCVTPD2PS.RZ_SAE Z10, Y10")
	w.code("VCVTPD2PS.RZ_SAE Z12, Y12")
	w.code("VINSERTF64X4 $1, Y12, Z10, Z10")
	w.code("VSCALEFPS.RZ_SAE Z9, Z10, Z%d", r)
}
