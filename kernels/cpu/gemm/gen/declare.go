package main

import (
	"fmt"
	"go/format"
	"strings"
)

// declarations is the Go side of the assembly: a set for each instruction set, and the functions.
func declarations() string {
	var text strings.Builder
	text.WriteString(notice + "package gemm\n")
	for _, m := range []*isa{avx512, avx2} {
		fmt.Fprintf(&text, "\nvar %s = set{\nlanes: %d,\nfamilies: []family{\n", m.file, m.lanes)
		for i := range m.shapes {
			s := m.shapes[len(m.shapes)-1-i]
			fmt.Fprintf(&text, "{vectors: %d, kernels: []kernel{", s.vectors)
			for rows := 1; rows <= s.rows; rows++ {
				fmt.Fprintf(&text, "%s,", m.kernel(rows, s.vectors))
			}
			text.WriteString("}},\n")
		}
		fmt.Fprintf(&text, "},\nmasks: %t,\n", m.masks)
		for _, f := range m.packs() {
			fmt.Fprintf(&text, "%s: %s%s,\n", f.name, f.name, m.suffix)
		}
		text.WriteString(m.dequantizeLoops())
		text.WriteString(m.tc16())
		fmt.Fprintf(&text, "spin: spin%s,\nspinFlops: %d,\n}\n", m.suffix, 2*spinChains*m.lanes)
	}
	for _, m := range []*isa{avx512, avx2} {
		for _, s := range m.shapes {
			for rows := 1; rows <= s.rows; rows++ {
				fmt.Fprintf(&text, "\n//go:noescape\nfunc %s%s\n", m.kernel(rows, s.vectors), kernelSignature)
			}
		}
		fmt.Fprintf(&text, "\nfunc spin%s(rounds int)\n", m.suffix)
		for _, f := range m.packs() {
			fmt.Fprintf(&text, "\n//go:noescape\nfunc %s%s%s\n", f.name, m.suffix, fmt.Sprintf(packSignature,
				elementType(f.width)))
		}
		for _, c := range codes {
			fmt.Fprintf(&text, "\n//go:noescape\nfunc dequantize%s%s%s\n", c.name, m.suffix, dequantizeSignature)
		}
	}
	fmt.Fprintf(&text, "\n//go:noescape\nfunc split16%s%s\n", avx512.suffix, splitSignature)
	for rows := 1; rows <= stepsRows; rows++ {
		fmt.Fprintf(&text, "\n//go:noescape\nfunc steps%d%s%s\n", rows, avx512.suffix, stepsSignature)
		fmt.Fprintf(&text, "\n//go:noescape\nfunc steps32x%d%s%s\n", rows, avx512.suffix, stepsSignature)
	}
	b, err := format.Source([]byte(text.String()))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// tc16 is a set's fields for the steps of DotTC16 and of fp8x32: assembly for AVX-512 alone.
func (m *isa) tc16() string {
	if m != avx512 {
		return "split16: split16Go,\nsteps16: steps16Go,\nsteps32: steps32Go,\n"
	}
	text := fmt.Sprintf("split16: split16%s,\nsteps16: []stepKernel{", m.suffix)
	for rows := 1; rows <= stepsRows; rows++ {
		text += fmt.Sprintf("steps%d%s,", rows, m.suffix)
	}
	text += "},\nsteps32: []stepKernel{"
	for rows := 1; rows <= stepsRows; rows++ {
		text += fmt.Sprintf("steps32x%d%s,", rows, m.suffix)
	}
	return text + "},\n"
}

type packLoop struct {
	name  string
	width int
}

func (m *isa) packs() []packLoop {
	return []packLoop{{"transposeF32", widthF32}, {"transposeBF16", widthBF16}, {"copyRowsF32", widthF32},
		{"copyRowsBF16", widthBF16}}
}
