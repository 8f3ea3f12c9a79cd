package main

import (
	"fmt"
	"strings"
)

// reduction is a function of one or two slices that compares or adds their elements.
type reduction struct {
	function
	frame int // bytes of stack on AVX2
	body  func(m *isa) string
}

var reductions = []reduction{
	{function{"max", "(x []float32) float32"}, 0, maximum},
	{function{"tree", "(x []float32) float32"}, 4 * treeLanes, func(m *isa) string { return tree(m, plain) }},
	{function{"treeDot", "(x, y []float32) float32"}, 4 * treeLanes, func(m *isa) string { return tree(m, dot) }},
	{function{"treeScaled", "(x, y []float32, a float32) float32"}, 4 * treeLanes, func(m *isa) string {
		return tree(m, scaled)
	}},
	{function{"blockLargest", "(x, most []float32)"}, 0, blockLargest},
}

// blockLargest keeps the largest magnitude of a block of 32 in every lane of register 0: lanes are compared with those
// 8, 4, 2 and 1 away.
func blockLargest(m *isa) string {
	mask, vectors := m.register(5), 32/m.lanes
	and := map[*isa]string{avx512: "VPANDD", avx2: "VPAND"}[m]
	text := lines("MOVQ most_base+24(FP), DI", "VMOVUPS vecMagnitude<>(SB), "+mask,
		"TESTQ CX, CX", "JZ done") + "\nnext:\n"
	for v := range vectors {
		to := m.register(min(v, 1))
		text += lines(fmt.Sprintf("%s %d(SI), %s, %s", and, 4*m.lanes*v, mask, to))
		if v > 0 {
			text += lines(fmt.Sprintf("VPMAXUD %s, %s, %s", to, m.register(0), m.register(0)))
		}
	}
	shuffles := []string{"VPERM2I128 $1, Y0, Y0, Y1", "VPSHUFD $0x4e, Y0, Y1", "VPSHUFD $0xb1, Y0, Y1"}
	if m == avx512 {
		shuffles = []string{"VSHUFI64X2 $0x4e, Z0, Z0, Z1", "VSHUFI64X2 $0xb1, Z0, Z0, Z1", "VPSHUFD $0x4e, Z0, Z1",
			"VPSHUFD $0xb1, Z0, Z1"}
	}
	for _, shuffle := range shuffles {
		text += lines(shuffle, fmt.Sprintf("VPMAXUD %s, %s, %s", m.register(1), m.register(0), m.register(0)))
	}
	for v := range vectors {
		text += lines(fmt.Sprintf("VMOVUPS %s, %d(DI)", m.register(0), 4*m.lanes*v))
	}
	return text + lines("ADDQ $128, SI", "ADDQ $128, DI", "SUBQ $32, CX", "JNZ next") + "\ndone:\n" +
		lines("VZEROUPPER", "RET")
}

// treeLanes is kernels.Definition.Lanes.
const treeLanes = 256

func (r reduction) head(m *isa) string {
	frame := r.frame
	if m == avx512 {
		frame = 0
	}
	return r.open(m, frame) + lines("MOVQ x_base+0(FP), SI", "MOVQ x_len+8(FP), CX")
}

// across folds the lanes of register 0 to its first by op, the upper half onto the lower, and returns it at offset.
func across(m *isa, op string, offset int) string {
	text := ""
	if m == avx512 {
		text = lines("VEXTRACTF32X8 $1, Z0, Y1", op+" Y1, Y0, Y0")
	}
	return text + lines("VEXTRACTF128 $1, Y0, X1", op+" X1, X0, X0", "VMOVHLPS X0, X0, X1", op+" X1, X0, X0",
		"VMOVSHDUP X0, X1", op+" X1, X0, X0") +
		lines(fmt.Sprintf("VMOVSS X0, ret+%d(FP)", offset), "VZEROUPPER", "RET")
}

// maximum keeps the largest of each lane in register 0 and what is not a number in register 3, K3 on AVX-512.
func maximum(m *isa) string {
	text := lines("VMOVUPS vecLowest<>(SB), "+m.register(2), "VMOVAPS "+m.register(2)+", "+m.register(0))
	each, tail, any := "", "", ""
	if m == avx512 {
		text += lines("KXORW K3, K3, K3")
		each = lines("VCMPPS $3, Z1, Z1, K2", "KORW K2, K3, K3", "VMAXPS Z1, Z0, Z0")
		tail = lines("VMOVAPS Z2, Z1", "VMOVUPS (SI), K1, Z1")
		any = lines("KORTESTW K3, K3", "JNZ nan")
	} else {
		text += lines("VXORPS Y3, Y3, Y3")
		each = lines("VCMPPS $3, Y1, Y1, Y4", "VORPS Y4, Y3, Y3", "VMAXPS Y1, Y0, Y0")
		tail = lines("VMASKMOVPS (SI), Y15, Y1", "VBLENDVPS Y15, Y1, Y2, Y1")
		any = lines("VMOVMSKPS Y3, BX", "TESTL BX, BX", "JNZ nan")
	}
	text += lines(fmt.Sprintf("SUBQ $%d, CX", m.lanes), "JLT rest") + "\nnext:\n" +
		lines("VMOVUPS (SI), "+m.register(1)) + each +
		lines(fmt.Sprintf("ADDQ $%d, SI", 4*m.lanes), fmt.Sprintf("SUBQ $%d, CX", m.lanes), "JGE next") +
		"\nrest:\n" + lines(fmt.Sprintf("ADDQ $%d, CX", m.lanes), "JZ fold") + m.mask() + tail + each + "\nfold:\n" +
		any
	// +0 makes a zero of either sign +0 before the lanes are compared, so the order of zeros does not matter.
	text += lines(m.zero(1), "VADDPS "+m.register(1)+", "+m.register(0)+", "+m.register(0))
	return text + across(m, "VMAXPS", 24) + "\nnan:\n" +
		lines("VMOVSS vecNaN<>(SB), X0", "VMOVSS X0, ret+24(FP)", "VZEROUPPER", "RET")
}

func (m *isa) zero(r int) string {
	return fmt.Sprintf("VXORPS X%d, X%d, X%d", r, r, r)
}

// addends is what a tree adds: x, x*y or x*(y*a), the products rounded.
type addends int

const (
	plain addends = iota
	dot
	scaled
)

// tree is the sum of the addends in the order of vec.Tree. a of AVX-512 is in Z31, of AVX2 in Y14.
func tree(m *isa, kind addends) string {
	text := map[addends]string{
		plain: "",
		dot:   lines("MOVQ y_base+24(FP), DI"),
		scaled: lines("MOVQ y_base+24(FP), DI", fmt.Sprintf("VBROADCASTSS a+48(FP), %s",
			m.register(map[*isa]int{avx512: 31, avx2: 14}[m]))),
	}[kind]
	ret := map[addends]int{plain: 24, dot: 48, scaled: 56}[kind]
	text += lines("MOVQ CX, DX")
	if m == avx512 {
		return text + treeRegisters(kind) + across(m, "VADDPS", ret)
	}
	return text + treeMemory(kind) + across(m, "VADDPS", ret)
}

// addend loads the addends at byte offset `at` of the present block to register r of AVX-512; K1 masks where masked,
// with register r+1 as scratch.
func addend(r, at int, kind addends, masked bool) string {
	z, k := "", ""
	if masked {
		z, k = ".Z", " K1,"
	}
	load := func(base string, r int) string {
		return lines(fmt.Sprintf("VMOVUPS%s %d(%s),%s Z%d", z, at, base, k, r))
	}
	if kind == plain {
		return load("SI", r)
	}
	text := load("DI", r)
	if kind == scaled {
		text += lines(fmt.Sprintf("VMULPS Z31, Z%d, Z%d", r, r))
	}
	if masked {
		return text + load("SI", r+1) + lines(fmt.Sprintf("VMULPS Z%d, Z%d, Z%d", r+1, r, r))
	}
	return text + lines(fmt.Sprintf("VMULPS %d(SI), Z%d, Z%d", at, r, r))
}

// treeRegisters keeps the 256 lanes in Z0-Z15. Halving starts at the number of registers that x reaches: 16, 8, 4, 2 or
// 1.
func treeRegisters(kind addends) string {
	const vectors = treeLanes / 16
	var out strings.Builder
	for v := range vectors {
		out.WriteString(lines(avx512.zero(v)))
	}
	out.WriteString(lines("SUBQ $256, CX", "JLT part") + "\nblock:\n")
	for v := range vectors {
		r := 16 + v%8
		out.WriteString(addend(r, 64*v, kind, false) + lines(fmt.Sprintf("VADDPS Z%d, Z%d, Z%d", r, v, v)))
	}
	step := []string{"ADDQ $1024, SI", "SUBQ $256, CX", "JGE block"}
	if kind != plain {
		step = append([]string{"ADDQ $1024, DI"}, step...)
	}
	out.WriteString(lines(step...) + "\npart:\n" + lines("ADDQ $256, CX", "MOVQ CX, R8", "ANDQ $15, CX") +
		avx512.mask() + lines("SUBQ $16, R8"))
	for v := range vectors - 1 {
		out.WriteString(lines(fmt.Sprintf("JLT last%d", v)))
		out.WriteString(addend(16, 64*v, kind, false) + lines(fmt.Sprintf("VADDPS Z16, Z%d, Z%d", v, v),
			"SUBQ $16, R8"))
	}
	// An empty mask would be right too, but a load just beyond x may meet a page that is not there, which costs
	// hundreds of cycles.
	for v := vectors - 1; v >= 0; v-- {
		out.WriteString(fmt.Sprintf("\nlast%d:\n", v) + lines("TESTQ CX, CX", "JZ halve") + addend(16, 64*v, kind,
			true) + lines(fmt.Sprintf("VADDPS Z16, Z%d, Z%d", v, v), "JMP halve"))
	}
	out.WriteString("\nhalve:\n")
	for n := 1; n < vectors; n *= 2 {
		out.WriteString(lines(fmt.Sprintf("CMPQ DX, $%d", 16*n), fmt.Sprintf("JLE by%d", n)))
	}
	for n := vectors / 2; n >= 1; n /= 2 {
		for v := range n {
			out.WriteString(lines(fmt.Sprintf("VADDPS Z%d, Z%d, Z%d", v+n, v, v)))
		}
		out.WriteString(fmt.Sprintf("\nby%d:\n", n))
	}
	return out.String()
}

// treeMemory keeps the lanes on the stack, at SP; R9 is the number of lanes that are used, a power of two from 8 to
// 256.
func treeMemory(kind addends) string {
	load, masked := lines("VMOVUPS (SI)(AX*4), Y0"), lines("VMASKMOVPS (SI)(AX*4), Y15, Y0")
	if kind != plain {
		load, masked = lines("VMOVUPS (DI)(AX*4), Y0"), lines("VMASKMOVPS (DI)(AX*4), Y15, Y0")
		if kind == scaled {
			load, masked = load+lines("VMULPS Y14, Y0, Y0"), masked+lines("VMULPS Y14, Y0, Y0")
		}
		load += lines("VMULPS (SI)(AX*4), Y0, Y0")
		masked += lines("VMASKMOVPS (SI)(AX*4), Y15, Y1", "VMULPS Y1, Y0, Y0")
	}
	// AX counts elements of x, R8 = AX mod 256 is their lane.
	add := lines("MOVQ AX, R8", "ANDQ $255, R8", "VADDPS (SP)(R8*4), Y0, Y0", "VMOVUPS Y0, (SP)(R8*4)")
	return lines("MOVL $8, R9") + "\ngrow:\n" +
		lines("CMPQ R9, DX", "JGE grown", "CMPQ R9, $256", "JGE grown", "SHLQ $1, R9", "JMP grow") + "\ngrown:\n" +
		lines("VXORPS X0, X0, X0", "XORQ AX, AX") + "\nclear:\n" +
		lines("VMOVUPS Y0, (SP)(AX*4)", "ADDQ $8, AX", "CMPQ AX, R9", "JLT clear", "XORQ AX, AX", "ANDQ $-8, DX",
			"JZ rest") + "\nnext:\n" +
		load + add + lines("ADDQ $8, AX", "CMPQ AX, DX", "JLT next") + "\nrest:\n" +
		lines("SUBQ AX, CX", "JZ halve") + avx2.mask() + masked + add + "\nhalve:\n" +
		lines("SHRQ $1, R9", "CMPQ R9, $8", "JLT done", "LEAQ (SP)(R9*4), BX", "XORQ AX, AX") + "\npair:\n" +
		lines("VMOVUPS (SP)(AX*4), Y0", "VADDPS (BX)(AX*4), Y0, Y0", "VMOVUPS Y0, (SP)(AX*4)", "ADDQ $8, AX",
			"CMPQ AX, R9", "JLT pair", "JMP halve") + "\ndone:\n" +
		lines("VMOVUPS (SP), Y0")
}
