package main

import (
	"fmt"
	"strings"
)

// isa is what differs between instruction sets in a straight line of vector code.
type isa struct {
	file, suffix string
	lanes        int    // fp32 in a register
	reg          string // letter of its registers
	free         int    // registers that values may use
}

// On AVX2 register 15 holds the mask of the tail; on AVX-512 K1 does.
var (
	avx512 = &isa{file: "avx512", suffix: "AVX512", lanes: 16, reg: "Z", free: 32}
	avx2   = &isa{file: "avx2", suffix: "AVX2", lanes: 8, reg: "Y", free: 15}
)

// entry is the function of the table: the assembly, or where AVX2 cannot store a tail of 16-bit elements, the Go
// function that adds it.
func (m *isa) entry(name string) string {
	if m == avx2 && (name == "widen" || name == "narrow") {
		return name + "Tail"
	}
	return name + m.suffix
}

func (m *isa) register(i int) string { return fmt.Sprintf("%s%d", m.reg, i) }

// mask sets the tail's mask to its lowest CX lanes, CX below the number of lanes, and may use BX.
func (m *isa) mask() string {
	if m == avx512 {
		return lines("MOVL $1, BX", "SHLL CX, BX", "DECL BX", "KMOVW BX, K1")
	}
	return lines("LEAQ vecMask<>+32(SB), BX", "SHLQ $2, CX", "SUBQ CX, BX", "VMOVUPS (BX), Y15")
}

func lines(l ...string) string { return "\t" + strings.Join(l, "\n\t") + "\n" }
