//go:build cuda

package gemm

import (
	"fmt"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// Variants of the kernels in fp8x128.cu. All give the same bits.
var (
	fp8Wide   = tiling{"_wide", 128, 256, 256, 4, 1}
	fp8Square = tiling{"_square", 128, 128, 128, 6, 1}
	fp8Few    = tiling{"_few", 128, 64, 64, 8, 1}
)

// FP8Paths are the values of [driver.Context.Path] that force each kernel of products of codes.
var FP8Paths = []string{"fp8_wide", "fp8_square", "fp8_few"}

// fp8TilingFor reads shapes alone.
func (d *Ops) fp8TilingFor(groups, rows, columns int) tiling {
	for _, s := range []tiling{fp8Wide, fp8Square, fp8Few} {
		if d.Path == "fp8"+s.name {
			return s
		}
	}
	switch average := driver.Blocks(rows, groups); {
	case average <= 64:
		return fp8Few
	case average >= 192 && fp8Wide.tiles(groups, rows, columns) >= d.Processors:
		return fp8Wide
	}
	return fp8Square
}

// CheckFP8 returns nil where kernels multiply rows in codes by a weight of this format and shape, otherwise the reason.
func (d *Ops) CheckFP8(w kernels.QuantizedWeight) error {
	switch {
	case !HasWgmma(d.Context):
		return fmt.Errorf("the FP8 tensor cores of a %s keep other bits than Hopper's", d.CardName())
	case w.Format.Scale != quant.ScaleF32 || w.DType != kernels.BF16:
		return fmt.Errorf("a GPU multiplies codes with fp32 scales and bf16 around them, and %s has others", w)
	case w.Cols%16 != 0 || w.Groups > productMaxGroups:
		return fmt.Errorf("a GPU multiplies codes of rows that are multiples of 16, of at most %d experts, and a "+
			"weight is %s", productMaxGroups, w)
	}
	return nil
}

// productFP8 is MatMul whose first term has codes on both sides.
func (d *Ops) productFP8(out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	x, q := terms[0].XQ, terms[0].Q
	if err := d.CheckFP8(*q); err != nil || !terms[0].OfCodes() || g != nil && g.Interleaved || x.Rows != out.Rows {
		panic(fmt.Sprintf("cuda: MatMul: out %s of %s and %s: %v", out, x, q, err))
	}
	for _, t := range terms[1:] {
		if driver.MustBF16(t.X, t.W); !d.native(groupCount(g), t.X, t.W) {
			panic(fmt.Sprintf("cuda: MatMul: codes with a term of %s and %s", t.X, t.W))
		}
	}
	groups, segments := groupCount(g), 1
	var offsets cu.DevicePtr
	if g != nil {
		offsets, segments = driver.Address(g.Offsets), g.Segments
	}
	s := d.fp8TilingFor(groups, out.Rows, out.Cols)
	scales := fp8x128BlockScales{x: driver.Address(x.Scales), w: driver.Address(q.Scales), rows: driver.Int32(x.Rows),
		columns: driver.Int32(q.Rows)}
	for _, w := range windows(out.Cols, s.columns, terms) {
		p := d.termsOf("nt", s, w, out, g)
		p.w[0] = d.BoxesOf(q.Codes, 128, s.columns, 128)
		grid := s.grid(d.Processors, groups, out.Rows, w.to-w.from)
		launchFp8x128(d.Context, s.name+driver.Suffix(out), grid, s.threads(), s.sharedOfCodes(groups), &p, &scales,
			out, out.Stride, offsets, groups, segments, out.Rows, w.to)
	}
}

// sharedOfCodes is the bytes of the ring with its scales, of what aligning it may cost, and of the table of groups.
func (s tiling) sharedOfCodes(groups int) int {
	return s.stages*((s.columns+s.rows)*128+((s.columns+s.rows)*4+1023)&^1023) + 1024 + (groups+1)*8
}
