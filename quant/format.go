package quant

import (
	"fmt"
	"math"
)

// Format is how a weight is kept in codes: Wide consecutive columns of a row, from column 0 on, the last ones fewer,
// share a scale, and a weight is code * scale, the product rounded to fp32.
type Format struct {
	Code  Code
	Scale Scale
	Wide  int
}

// Code is the format of the codes.
type Code uint8

const (
	CodeINT4 Code = iota // 4 bits: an integer from -8 to 7, stored plus 8
	CodeE2M1             // 4 bits: FP4 of OCP's MX formats
	CodeE4M3             // 8 bits: [E4M3]
	CodeNF4              // 4 bits: NormalFloat4, see [NF4]
)

// Bits is the size of a code.
func (c Code) Bits() int {
	if c == CodeE4M3 {
		return 8
	}
	return 4
}

func (c Code) String() string { return [...]string{"int4", "e2m1", "e4m3", "nf4"}[c] }

// Scale is the storage type of scales.
type Scale uint8

const (
	ScaleE8M0 Scale = iota // 8 bits: 2^(e-127)
	ScaleBF16
	ScaleF32
)

func (s Scale) String() string { return [...]string{"e8m0", "bf16", "fp32"}[s] }

// Bits is the size of a scale.
func (s Scale) Bits() int { return [...]int{8, 16, 32}[s] }

func (f Format) String() string {
	return fmt.Sprintf("%s with %s scales of %d", f.Code, f.Scale, f.Wide)
}

// RowBytes is the bytes of the codes of a row: columns ascending, the earlier of two codes of 4 bits in the low bits.
func (f Format) RowBytes(cols int) int { return (cols*f.Code.Bits() + 7) / 8 }

// Blocks is how many scales a row of so many columns has.
func (f Format) Blocks(cols int) int { return (cols + f.Wide - 1) / f.Wide }

// Decode decodes codes of a row from column `first` on, as many as dst holds, which share a scale. codes are those of
// the whole row.
func (f Format) Decode(dst []float32, codes []byte, first int, scale float32) {
	if f.Code == CodeE4M3 {
		for i, c := range codes[first:][:len(dst)] {
			dst[i] = e4m3Values[c] * scale
		}
		return
	}
	values := nibbleValues[f.Code]
	if first&1 == 1 && len(dst) > 0 {
		dst[0] = values[codes[first/2]>>4] * scale
		dst, first = dst[1:], first+1
	}
	codes = codes[first/2:]
	for i := 0; i+1 < len(dst); i += 2 {
		c := codes[i/2]
		dst[i], dst[i+1] = values[c&15]*scale, values[c>>4]*scale
	}
	if n := len(dst); n&1 == 1 {
		dst[n-1] = values[codes[n/2]&15] * scale
	}
}

// nibbleValues are the numbers of the 16 codes of each format of 4 bits.
var nibbleValues = [...]*[16]float32{CodeINT4: &int4Values, CodeE2M1: &e2m1Values, CodeNF4: &NF4}

// int4Values are the numbers of the 16 codes of [CodeINT4].
var int4Values = [16]float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}

// PowerOfTwo is the number of a code of [ScaleE8M0].
func PowerOfTwo(e byte) float32 { return e8m0Values[e] }

// CodeOfScale is the code of a power of two, or of NaN.
func CodeOfScale(s float32) byte {
	if s != s {
		return 255
	}
	return byte(math.Float32bits(s) >> 23)
}

// EncodePowerOfTwo is the code of [ScaleE8M0] whose number is s, where there is one.
func EncodePowerOfTwo(s float32) (e byte, ok bool) {
	e = CodeOfScale(s)
	return e, e8m0Values[e] == s
}
