//go:build cuda

package gemm

import (
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
	"lockstep/quant"
)

// codesTiling is a variant of the kernels in quantized.cuh. All give the same bits.
type codesTiling struct {
	tiling
	bytes int // of each row of codes in a stage; 0: 64 columns, or 128 where tiles are left to be stored
	each  int // columns of a warp in the kernels of quantized_few.cuh, by mma.sync; 0: by wgmma
	more  int // stages of codes of 8 bits, which are smaller, beyond those of the others
	// decodes by warps that do not multiply (quantized_alone.cuh)
	apart bool
	// stores by warps that do not multiply (quantized_some.cuh)
	leaves bool
}

var (
	codesWide    = codesTiling{tiling: tiling{"_wide", 128, 256, 256, 4, 1}}
	codesSquare  = codesTiling{tiling: tiling{"_square", 128, 128, 128, 6, 1}}
	codesSome    = codesTiling{tiling: tiling{"_some", 256, 96, 96, 3, 1}, leaves: true}
	codesSeveral = codesTiling{tiling: tiling{"_several", 256, 32, 32, 2, 2}, bytes: 128, each: 64}
	// alone on its multiprocessor
	codesAlone = codesTiling{tiling: tiling{"_alone", 64, 64, 64, 6, 1}, apart: true}
	codesTall  = codesTiling{tiling: tiling{"_tall", 64, 128, 128, 4, 1}, apart: true}
	codesThin  = codesTiling{tiling: tiling{"_thin", 64, 16, 16, 3, 4}, bytes: 128, each: 16, more: 1}
)

// of is the variant with tiles of fewer rows.
func (s codesTiling) of(height int) codesTiling {
	s.tiling = s.tiling.of(height)
	return s
}

// mostLeft is the most groups whose table leaves room for the widest stages and a tile that waits to be stored: as many
// as Kimi K2 has experts.
const mostLeft = 384

// codesTilings are those of a layout: few rows have no kernels for MatMulT.
var codesTilings = map[string][]codesTiling{"nt": {codesWide, codesSquare, codesSquare.of(32), codesSquare.of(64),
	codesSquare.of(96), codesAlone, codesAlone.of(16), codesAlone.of(32), codesTall, codesSome, codesSeveral,
	codesThin},
	"nn": {codesWide, codesSquare, codesSquare.of(32), codesSquare.of(64), codesSquare.of(96)}}

// QuantizedPaths are the values of [driver.Context.Path] that force each variant of products with weights in codes.
var QuantizedPaths = []string{PathDequantized, "codes_wide", "codes_square", "codes_some", "codes_several",
	"codes_thin", "codes_square32", "codes_square64", "codes_square96", "codes_alone", "codes_alone16",
	"codes_alone32", "codes_tall"}

// codesTilingFor reads shapes alone: few rows want weights to arrive in large pieces, many want large tiles. Groups are
// of uneven sizes: most of them fit one tile.
func (d *Ops) codesTilingFor(layout string, groups, rows, columns int) codesTiling {
	for _, s := range codesTilings[layout] {
		if d.Path == "codes"+s.String() {
			return s
		}
	}
	average := driver.Blocks(rows, groups)
	some, wide := codesSome.tiles(groups, rows, columns), codesWide.tiles(groups, rows, columns)
	switch {
	case average >= 112 && wide >= d.Processors:
		return codesWide
	case layout == "nn" || average > 80 || average > 48 && some < d.Processors:
		return d.codesSquareFor(layout, groups, rows, columns)
	case 2*some <= d.Processors:
		return codesThin
	case average <= 24:
		return codesSeveral
	case groups > mostLeft:
		return codesSquare
	}
	return codesSome
}

// codesSquareFor is the tile with the fewest rows that leaves each multiprocessor at most one. More tiles decode a
// weight more often, but on multiprocessors that had nothing to do, and products of fewer rows are shorter; of tiles of
// 64 columns a multiprocessor decodes half of what it does of those of 128.
func (d *Ops) codesSquareFor(layout string, groups, rows, columns int) codesTiling {
	for _, s := range []codesTiling{codesAlone.of(16), codesAlone.of(32), codesAlone, codesTall, codesSquare.of(32),
		codesSquare.of(64), codesSquare.of(96)} {
		if slices.Contains(codesTilings[layout], s) && s.tiles(groups, rows, columns) <= d.Processors-d.busy {
			return s
		}
	}
	return codesSquare
}

// codesFormat is a format as quantized.cuh has kernels for it.
type codesFormat struct {
	quant.Format
	name string
	wide int // columns to a scale: 32, or 0 for a multiple of 128
}

// codesFormatOf finds the kernels' format for rows of so many columns.
func codesFormatOf(f quant.Format, cols int) (c codesFormat, ok bool) {
	blocks := "_32"
	switch {
	case f.Wide == 32:
		c.wide = 32
	case f.Wide%128 == 0 || f.Wide >= cols:
		blocks = "_128"
	default:
		return c, false
	}
	c.Format, c.name = f, f.Code.String()+"_"+f.Scale.String()+blocks
	return c, slices.Contains([]string{"int4_bf16_32", "e2m1_e8m0_32", "e4m3_e8m0_32", "e4m3_e8m0_128",
		"e4m3_fp32_128"}, c.name)
}

// stage is quantized.cuh's: rows of codes in a stage, bytes of each, blocks of columns with a scale of their own.
func (s codesTiling) stage(layout string, f codesFormat) (lines, lineBytes, blocks int) {
	cols := s.columns
	lines = 64
	if layout == "nt" {
		lines, cols = s.columns, s.depth(f)
	}
	if blocks = 1; f.wide > 0 {
		blocks = cols / f.wide
	}
	return lines, cols * f.Code.Bits() / 8, blocks
}

// depth is the k of a stage.
func (s codesTiling) depth(f codesFormat) int {
	switch {
	case s.bytes > 0:
		return s.bytes * 8 / f.Code.Bits()
	case s.leaves:
		return 128
	}
	return 64
}

// slots is how many stages the ring has.
func (s codesTiling) slots(f codesFormat) int {
	if f.Code.Bits() == 8 {
		return s.stages + s.more
	}
	return s.stages
}

func (s codesTiling) threads() int {
	if s.each > 0 {
		return s.columns/s.each*32 + 64
	}
	if s.apart {
		return 17 * 32 // 4 warps multiply, 12 decode, one copies
	}
	return s.tiling.threads()
}

// shared is the bytes of the ring, of what aligning it may cost, and of the table of groups.
func (s codesTiling) shared(layout string, f codesFormat, groups int) int {
	if s.apart {
		return s.stages*(s.columns+s.rows)*256 + 1024 + (groups+1)*8
	}
	lines, lineBytes, blocks := s.stage(layout, f)
	weights := max((lines*(lineBytes+blocks*f.Scale.Bits()/8)+1023)&^1023, s.columns*128)
	left := 0
	if s.leaves {
		left = s.rows * (s.columns + 8) * 2
	}
	return s.slots(f)*(weights+s.rows*s.depth(f)*2) + left + 1024 + (groups+1)*8
}

// nativeCodes tells whether kernels read the codes of a product's first weight as they are.
func (d *Ops) nativeCodes(out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) (f codesFormat, ok bool) {
	if d.Path == PathDequantized || out.DType != kernels.BF16 || !inCodes(terms[0]) ||
		slices.ContainsFunc(terms[1:], inCodes) {
		return f, false
	}
	q := *terms[0].Q
	if f, ok = codesFormatOf(q.Format, q.Cols); !ok || q.DType != kernels.BF16 || !inRows16(q.Codes) ||
		!inRows16(q.Scales) || !d.native(groupCount(g), terms[0].X) || q.Rows == 0 {
		return f, false
	}
	for _, t := range terms[1:] {
		driver.MustBF16(t.X, t.W)
		from, to := t.Columns(out.Cols)
		// A launch may begin at either, where scales have to lie at a multiple of 16 bytes.
		if !d.native(groupCount(g), t.X, t.W) || from%16 != 0 || to%16 != 0 && to != out.Cols {
			return f, false
		}
	}
	return f, true
}

// inRows16 tells whether rows follow each other at multiples of 16 bytes.
func inRows16(t kernels.Tensor) bool {
	return t.Contiguous() && uintptr(t.Data)%16 == 0 && t.Cols*t.DType.Size()%16 == 0 && t.Cols > 0
}

// launchCodes are the launchers of the three sources.
var launchCodes = [...]func(*driver.Context, string, [3]int, int, int, *productTerms, *quantizedScales, kernels.Tensor,
	int, cu.DevicePtr, int, int, int, int){
	quant.CodeINT4: launchProductInt4[kernels.Tensor, cu.DevicePtr],
	quant.CodeE2M1: launchProductE2m1[kernels.Tensor, cu.DevicePtr],
	quant.CodeE4M3: launchProductE4m3[kernels.Tensor, cu.DevicePtr],
}

// productCodes is MatMul ("nt") or MatMulT ("nn") with the first term's weight in codes.
func (d *Ops) productCodes(layout string, f codesFormat, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	groups, rows, segments := groupCount(g), out.Rows, 1
	var offsets cu.DevicePtr
	if g != nil {
		offsets, segments = driver.Address(g.Offsets), g.Segments
	}
	s := d.codesTilingFor(layout, groups, rows, out.Cols)
	q := terms[0].Q
	kernel, shared := layout+"_"+f.name+s.name, s.shared(layout, f, groups)
	wide := driver.Int32(min(q.Format.Wide, (q.Cols+127)&^127))
	for _, w := range windows(out.Cols, s.columns, terms) {
		d.begin()
		p, grid := d.termsOf(layout, s.tiling, w, out, g), s.grid(d.Processors, groups, rows, w.to-w.from)
		if s.apart {
			from := quantizedAloneLines{codes: driver.Address(q.Codes), scales: driver.Address(q.Scales), wide: wide,
				lines: driver.Int32(q.Rows), bytes: driver.Int32(q.Codes.Cols), blocks: driver.Int32(q.Scales.Rows)}
			launchProductAlone(d.Context, kernel, grid, s.threads(), shared, &p, &from, out, out.Stride, offsets,
				groups, segments, rows, w.to)
			continue
		}
		lines, lineBytes, blocks := s.stage(layout, f)
		p.w[0] = d.BoxesOf(q.Codes, lineBytes, lines, lineBytes)
		scales := quantizedScales{map_: d.BoxesOf(q.Scales, lines, blocks, 0), wide: wide}
		launchCodes[f.Code](d.Context, kernel, grid, s.threads(), shared, &p, &scales, out, out.Stride, offsets, groups,
			segments, rows, w.to)
	}
}
