package main

import (
	"fmt"
	"math"
	"slices"

	"lockstep/quant"
)

// The dequantizing loops read rows of codes and write round(code * scale) in fp32, 32 columns at a time: most formats
// have a scale for so many.
const (
	dequantizeCols = 32

	dequantizeSignature = "(dst *float32, codes *byte, scales *float32, ds, cs, ss, wide, rows, cols int, narrow bool)"
	dequantizeArgBytes  = 73
)

// code is how a loop decodes one format of codes.
type code struct {
	name   string
	bits   int
	values []float32                      // of codes of 4 bits, or of the subnormal E4M3
	start  func(w *writer, values string) // sets constants
	scale  func(w *writer)                // begins a block of columns, whose scale is broadcast
	vector func(w *writer, at string)     // the numbers of the codes at an address to register 0
}

var codes = []code{
	{"INT4", 4, nibbles(quant.CodeINT4), (*writer).startINT4, (*writer).scaleNibbles, (*writer).int4},
	{"E2M1", 4, nibbles(quant.CodeE2M1), (*writer).startE2M1, (*writer).scaleNibbles, (*writer).e2m1},
	{"E4M3", 8, subnormalE4M3(), (*writer).startE4M3, func(*writer) {}, (*writer).e4m3},
	{"NF4", 4, nibbles(quant.CodeNF4), (*writer).startNF4, (*writer).scaleNibbles, (*writer).nf4},
}

// nibbles is the numbers of the 16 codes of 4 bits.
func nibbles(c quant.Code) []float32 {
	values, packed := make([]float32, 16), make([]byte, 8)
	for i := range packed {
		packed[i] = byte(2*i | (2*i+1)<<4)
	}
	quant.Format{Code: c}.Decode(values, packed, 0, 1)
	return values
}

// subnormalE4M3 is the numbers of codes without exponent by their low bits, for as many lanes as a register has.
func subnormalE4M3() (v []float32) {
	for i := range 16 {
		v = append(v, float32(math.Ldexp(float64(i%8), -9)))
	}
	return v
}

// hold broadcasts 32 bits to a register of their own, from the last one down.
func (w *writer) hold(name string, bits uint32) {
	w.code("MOVL $%#x, AX", bits)
	w.code("VMOVD AX, X0")
	w.code("VPBROADCASTD X0, %s", w.held(name))
}

// held is the register of a constant.
func (w *writer) held(name string) string {
	i := slices.Index(w.constants, name)
	if i < 0 {
		i = len(w.constants)
		w.constants = append(w.constants, name)
	}
	return w.reg(w.registers - 1 - i)
}

// dequantize writes the loop of a code. Registers: DI, R8 destination and its stride in bytes; SI, R9 codes and their
// stride; R10, R11 scales of the row and the distance between those of two blocks; R12 columns of a block. Of one row:
// BX, DX, AX destination, codes and scale; CX columns left, R13 those of the block.
func (w *writer) dequantize(c code) {
	name := "dequantize" + c.name
	values := name + "Values<>"
	for i, v := range c.values {
		w.line("DATA %s+%d(SB)/4, $%#x", values, 4*i, math.Float32bits(v))
	}
	w.line("GLOBL %s(SB), RODATA|NOPTR, $%d\n", values, 4*len(c.values))
	w.constants, w.rounded = nil, 0
	w.function(name+w.suffix, dequantizeSignature, dequantizeArgBytes)
	for i, r := range []string{"DI", "SI", "R10", "R8", "R9", "R11", "R12"} {
		arg := []string{"dst", "codes", "scales", "ds", "cs", "ss", "wide"}[i]
		w.code("MOVQ %s+%d(FP), %s", arg, 8*i, r)
	}
	w.code("SHLQ $2, R8")
	w.code("SHLQ $2, R11")
	c.start(w, values)
	w.hold("one", 1)
	w.hold("half", 0x7fff)
	w.hold("quiet", 0x400000)
	w.hold("high", 0xffff0000)
	w.code("MOVBLZX narrow+72(FP), R15")

	w.label("row")
	w.code("MOVQ DI, BX")
	w.code("MOVQ SI, DX")
	w.code("MOVQ R10, AX")
	w.code("MOVQ cols+64(FP), CX")
	w.label("block")
	w.code("VBROADCASTSS (AX), %s", w.held("scale"))
	w.code("ADDQ R11, AX")
	w.code("MOVQ R12, R13")
	c.scale(w)
	w.label("cols")
	w.code("PREFETCHT0 (DX)(R9*8)")
	for v := range dequantizeCols / w.lanes {
		c.vector(w, fmt.Sprintf("%d(DX)", v*w.lanes*c.bits/8))
		w.code("VMOVUPS %s, %d(BX)", w.reg(0), v*w.bytes())
	}
	w.code("ADDQ $%d, BX", 4*dequantizeCols)
	w.code("ADDQ $%d, DX", dequantizeCols*c.bits/8)
	w.code("SUBQ $%d, CX", dequantizeCols)
	w.code("JEQ  next")
	w.code("SUBQ $%d, R13", dequantizeCols)
	w.code("JNE  cols")
	w.code("JMP  block")

	w.label("next")
	w.code("ADDQ R8, DI")
	w.code("ADDQ R9, SI")
	w.code("ADDQ $4, R10")
	w.code("DECQ rows+56(FP)")
	w.code("JNE  row")
	w.end()
}

func (w *writer) startINT4(values string) {
	if w.masks {
		w.code("VMOVUPS %s(SB), %s", values, w.held("values"))
		return
	}
	w.hold("nibble", 15)
	w.hold("eight", 8)
}

func (w *writer) startE2M1(values string) {
	w.code("VMOVUPS %s(SB), %s", values, w.held("values"))
	if !w.masks {
		w.hold("sign", 1<<31)
	}
}

// scaleNibbles multiplies and rounds the numbers of all 16 codes, which are a register of AVX-512.
func (w *writer) scaleNibbles() {
	if w.masks {
		w.code("VMULPS %s, %s, %s", w.held("scale"), w.held("values"), w.reg(0))
		w.round()
		w.code("VMOVAPS %s, %s", w.reg(0), w.held("scaled"))
	}
}

// nibbles loads codes of 4 bits to the low bits of register 0's lanes; what is above them is unspecified. The first of
// two codes stays in the low half of 64 bits, the second moves to the high half.
func (w *writer) nibbles(at string) {
	w.code("VPMOVZXBQ %s, %s", at, w.reg(0))
	w.code("VPSLLQ $28, %s, %s", w.reg(0), w.reg(1))
	if w.masks {
		w.code("VPORQ %s, %s, %s", w.reg(1), w.reg(0), w.reg(0))
		return
	}
	w.code("VPOR %s, %s, %s", w.reg(1), w.reg(0), w.reg(0))
}

// lookup takes scaled numbers by codes of 4 bits.
func (w *writer) lookup() {
	w.code("VPERMPS %s, %s, %s", w.held("scaled"), w.reg(0), w.reg(0))
}

func (w *writer) int4(at string) {
	w.nibbles(at)
	if w.masks {
		w.lookup()
		return
	}
	w.code("VPAND %s, %s, %s", w.held("nibble"), w.reg(0), w.reg(0))
	w.code("VPSUBD %s, %s, %s", w.held("eight"), w.reg(0), w.reg(0))
	w.code("VCVTDQ2PS %s, %s", w.reg(0), w.reg(0))
	w.scaled()
}

func (w *writer) e2m1(at string) {
	w.nibbles(at)
	if w.masks {
		w.lookup()
		return
	}
	w.code("VPERMPS %s, %s, %s", w.held("values"), w.reg(0), w.reg(1)) // eight magnitudes
	w.code("VPSLLD $28, %s, %s", w.reg(0), w.reg(0))
	w.code("VPAND %s, %s, %s", w.held("sign"), w.reg(0), w.reg(0))
	w.code("VPOR %s, %s, %s", w.reg(1), w.reg(0), w.reg(0))
	w.scaled()
}

func (w *writer) startNF4(values string) {
	w.code("VMOVUPS %s(SB), %s", values, w.held("values"))
	if !w.masks {
		w.code("VMOVUPS %s+32(SB), %s", values, w.held("upper"))
	}
}

// nf4 without registers of 16 numbers looks up both halves of the table; the highest bit of a code chooses.
func (w *writer) nf4(at string) {
	w.nibbles(at)
	if w.masks {
		w.lookup()
		return
	}
	w.code("VPERMPS %s, %s, %s", w.held("values"), w.reg(0), w.reg(1))
	w.code("VPERMPS %s, %s, %s", w.held("upper"), w.reg(0), w.reg(2))
	w.code("VPSLLD $28, %s, %s", w.reg(0), w.reg(0))
	w.code("VBLENDVPS %s, %s, %s, %s", w.reg(0), w.reg(2), w.reg(1), w.reg(0))
	w.scaled()
}

func (w *writer) startE4M3(values string) {
	w.code("VMOVUPS %s(SB), %s", values, w.held("values"))
	w.hold("sign", 1<<31)
	w.hold("bias", (127-7)<<23)
	w.hold("magnitude", 0x7f<<20)
	w.hold("exponent", 0x78)
	w.hold("NaN", 0x7fc00000)
}

// e4m3 moves exponent and significand to their places in fp32 and adds the difference of the biases. Codes without
// exponent are looked up, and the last magnitude is NaN.
func (w *writer) e4m3(at string) {
	x, t := w.reg(0), w.reg(1)
	w.code("VPMOVSXBD %s, %s", at, x)
	w.code("VPSLLD $20, %s, %s", x, t)
	if w.masks {
		w.code("VPANDD %s, %s, %s", w.held("magnitude"), t, t)
		w.code("VPTESTNMD %s, %s, K1", w.held("exponent"), x)
		w.code("VPCMPEQD %s, %s, K2", w.held("magnitude"), t)
		w.code("VPADDD %s, %s, %s", w.held("bias"), t, t)
		w.code("VPERMPS %s, %s, K1, %s", w.held("values"), x, t)
		w.code("VMOVDQA32 %s, K2, %s", w.held("NaN"), t)
		w.code("VPANDD %s, %s, %s", w.held("sign"), x, x)
		w.code("VPORD %s, %s, %s", t, x, x)
	} else {
		w.code("VPAND %s, %s, %s", w.held("magnitude"), t, t)
		w.code("VPCMPEQD %s, %s, %s", w.held("magnitude"), t, w.reg(2))
		w.code("VPADDD %s, %s, %s", w.held("bias"), t, t)
		w.code("VBLENDVPS %s, %s, %s, %s", w.reg(2), w.held("NaN"), t, t)
		w.code("VPANDN %s, %s, %s", w.held("exponent"), x, w.reg(2))
		w.code("VPCMPEQD %s, %s, %s", w.held("exponent"), w.reg(2), w.reg(2))
		w.code("VPERMPS %s, %s, %s", w.held("values"), x, w.reg(3))
		w.code("VBLENDVPS %s, %s, %s, %s", w.reg(2), w.reg(3), t, t)
		w.code("VPAND %s, %s, %s", w.held("sign"), x, x)
		w.code("VPOR %s, %s, %s", t, x, x)
	}
	w.scaled()
}

// scaled multiplies register 0 by the scale and rounds it.
func (w *writer) scaled() {
	w.code("VMULPS %s, %s, %s", w.held("scale"), w.reg(0), w.reg(0))
	w.round()
}

// round rounds register 0 to bf16 where R15 says so, as kernels.RoundBF16 does.
func (w *writer) round() {
	x, t := w.reg(0), w.reg(1)
	w.rounded++
	label := fmt.Sprintf("rounded%d", w.rounded)
	w.code("TESTL R15, R15")
	w.code("JEQ  %s", label)
	w.code("VPSRLD $16, %s, %s", x, t)
	and := map[bool]string{true: "VPANDD", false: "VPAND"}[w.masks]
	w.code("%s %s, %s, %s", and, w.held("one"), t, t)
	w.code("VPADDD %s, %s, %s", x, t, t)
	w.code("VPADDD %s, %s, %s", w.held("half"), t, t)
	if w.masks {
		w.code("VCMPPS $3, %s, %s, K3", x, x) // a NaN
		w.code("VPORD %s, %s, K3, %s", w.held("quiet"), x, t)
	} else {
		w.code("VCMPPS $3, %s, %s, %s", x, x, w.reg(2))
		w.code("VPOR %s, %s, %s", w.held("quiet"), x, w.reg(3))
		w.code("VBLENDVPS %s, %s, %s, %s", w.reg(2), w.reg(3), t, t)
	}
	w.code("%s %s, %s, %s", and, w.held("high"), t, x)
	w.label(label)
}

// dequantizeLoops is a set's field: a loop for each code, by its number.
func (m *isa) dequantizeLoops() (text string) {
	for _, c := range codes {
		text += fmt.Sprintf("dequantize%s%s,", c.name, m.suffix)
	}
	return "dequantize: []dequantizeLoop{" + text + "},\n"
}
