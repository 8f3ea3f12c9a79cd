package gemm

import "fmt"

//go:generate go run ./gen -o .

// kernel continues the chains of one tile: c[i*cs+j] over ascending l < k of a[i*as+l] * b[l*bs+j], from c, or from +0
// if fresh. Its rows and columns are fixed; strides count elements.
type kernel func(k int, a *float32, as int, b *float32, bs int, c *float32, cs int, fresh bool)

// stepKernel is kernel for steps of DotTC16, or of fp8x32, on 16 columns. Operands are what split16 wrote: rows of A
// with stride ar, B as [16*steps, 16], or [32*steps, 16]. It returns false and does not write c if a step needs the
// scalar reference.
type stepKernel func(steps int, as, ae *uint32, ar int, bs, be *uint32, c *float32, cs int, fresh bool) (known bool)

// dequantizeLoop writes dst[i*ds+j] = round(code * scale) for rows i and columns j. Codes of row i begin at
// codes[i*cs], and the scale is scales[j/wide*ss+i]. The product is rounded to fp32, and then to bf16 if narrow is set.
// cols and wide are multiples of dequantizeCols.
type dequantizeLoop func(dst *float32, codes *byte, scales *float32, ds, cs, ss, wide, rows, cols int, narrow bool)

// family is the kernels of vectors registers of columns: kernels[r-1] has r rows.
type family struct {
	vectors int
	kernels []kernel
}

// set is what an instruction set provides: kernels, widest family first, and loops that pack fp32 and bf16 into fp32.
// Packing loops write full registers, so destinations have room for rows and columns rounded up to lanes; without
// masks they take full registers of columns only.
type set struct {
	lanes    int
	families []family
	masks    bool

	// dst[j*ds+i] = src[i*ss+j], rows at most lanes
	transposeF32  func(dst *float32, ds int, src *float32, ss, rows, cols int)
	transposeBF16 func(dst *float32, ds int, src *uint16, ss, rows, cols int)
	copyRowsF32   func(dst *float32, ds int, src *float32, ss, rows, cols int) // dst[i*ds+j] = src[i*ss+j]
	copyRowsBF16  func(dst *float32, ds int, src *uint16, ss, rows, cols int)

	dequantize []dequantizeLoop // by quant.Code; none: decoded by package quant

	split16 func(significand, exponent *uint32, x *float32, n int) (finite bool) // n a multiple of 16
	steps16 []stepKernel                                                         // steps16[r-1] has r rows
	steps32 []stepKernel                                                         // of fp8x32

	spin      func(rounds int) // FMAs on registers alone, spinFlops floating-point operations a round
	spinFlops int
}

func setOf(isa string) *set {
	s, ok := sets[isa]
	if !ok {
		panic(fmt.Sprintf("gemm: no instruction set %q", isa))
	}
	return s
}

// familiesFor is the families whose kernels take m rows at once, or as many as any kernel takes.
func (s *set) familiesFor(m int) []family {
	for i, f := range s.families {
		if len(f.kernels) >= m {
			return s.families[i:]
		}
	}
	last := s.families[len(s.families)-1]
	for i, f := range s.families {
		if len(f.kernels) == len(last.kernels) {
			return s.families[i:]
		}
	}
	panic("gemm: no kernels")
}
