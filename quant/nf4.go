package quant

// NF4 is the numbers of the 16 codes of NormalFloat4, quantiles of a normal distribution (Dettmers et al., "QLoRA",
// arXiv 2305.14314), rounded to fp32 as bitsandbytes has them.
var NF4 = [16]float32{
	-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
	-0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
	0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
}

// FormatNF4 is NF4 whose absmax are the scales of so many columns.
func FormatNF4(wide int) Format { return Format{CodeNF4, ScaleF32, wide} }

// SwapNibbles copies codes of 4 bits of which the first of two is in the high bits, as bitsandbytes has them, to the
// order of [Format.RowBytes].
func SwapNibbles(dst, src []byte) {
	for i, c := range src[:len(dst)] {
		dst[i] = c<<4 | c>>4
	}
}

// NestedAbsmax is the absmax of NF4 blocks that are in codes of 8 bits themselves: table[code] * absmax rounded to
// fp32, plus offset, rounded again. Codes of a block share an absmax.
func NestedAbsmax(codes []byte, table *[256]float32, absmax []float32, block int, offset float32) []float32 {
	out := make([]float32, len(codes))
	for i, code := range codes {
		out[i] = float32(table[code]*absmax[i/block]) + offset
	}
	return out
}
