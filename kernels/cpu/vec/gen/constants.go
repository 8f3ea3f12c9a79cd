package main

import (
	"fmt"
	"math"
	"strings"

	"lockstep/kernels"
)

// word is 32 bits that a register has in every lane.
type word struct {
	name string
	bits uint32
}

// constants is one register's worth of each word of arith.go and loops.go, and on AVX2 the table that masks are cut
// from.
func constants(m *isa) string {
	words := []word{
		{"Magic", math.Float32bits(kernels.Exp2Magic)}, {"Least", math.Float32bits(-126)},
		{"Log2E", math.Float32bits(kernels.Log2E)},
		{"One", math.Float32bits(1)}, {"Zero", 0}, {"Sign", 1 << 31},
		{"Lowest", math.Float32bits(float32(math.Inf(-1)))},
		{"Half", 0x7fff}, {"Bit", 1}, {"Quiet", 0x40}, {"NaN", 0x7fc00000},
		// of vec.MXFP8
		{"Magnitude", 0x7fffffff}, {"Infinity", 0x7f800000}, {"MostFinite", 0x7f7fffff}, {"MXFP8Carry", 0x1fffff},
		{"Eight", 8}, {"InverseOne", 254}, {"SubnormalScale", 0x400000}, {"LeastE4M3", 0x3c800000},
		{"Twenty", 20 << 23},
	}
	for i, c := range kernels.Exp2Coeffs {
		words = append(words, word{fmt.Sprintf("Exp%d", i), math.Float32bits(c)})
	}
	words = append(words, ex2hWords...)
	var out strings.Builder
	for _, w := range words {
		out.WriteString("\n")
		table(&out, "vec"+w.name, m.lanes, func(int) uint32 { return w.bits })
	}
	ex2hTables(&out, m)
	if m == avx2 {
		out.WriteString("\n")
		table(&out, "vecMask", 2*m.lanes, func(i int) uint32 {
			if i < m.lanes {
				return math.MaxUint32
			}
			return 0
		})
	}
	return out.String()
}

func table(out *strings.Builder, name string, n int, word func(i int) uint32) {
	for i := 0; i < n; i += 2 {
		fmt.Fprintf(out, "DATA %s<>+%d(SB)/8, $0x%08x%08x\n", name, 4*i, word(i+1), word(i))
	}
	fmt.Fprintf(out, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 4*n)
}
