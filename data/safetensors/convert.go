package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"

	"lockstep/kernels"
)

// ToF32 converts a tensor's values, exactly but for F64, which is rounded to nearest even. len(dst) is the number of
// elements.
func ToF32(dst []float32, t TensorInfo) error {
	checkLen(len(dst), t)
	src := t.Data
	switch t.DType {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = kernels.FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case "F16":
		for i := range dst {
			dst[i] = FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case "F64":
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case "F8_E4M3", "F8_E5M2", "F8_E8M0":
		table := f8Table(t.DType)
		for i := range dst {
			dst[i] = table[src[i]]
		}
	default:
		return unconvertible(t)
	}
	return nil
}

func checkLen(n int, t TensorInfo) {
	if n != t.Len() {
		panic(fmt.Sprintf("safetensors: %d values for tensor %q of shape %v", n, t.Name, t.Shape))
	}
}

func unconvertible(t TensorInfo) error {
	return fmt.Errorf("%s: tensor %q: %s is not a type of weights that can be read: convert it to BF16 or F32", t.File,
		t.Name, t.DType)
}

// FromF16 converts IEEE half precision exactly.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero or subnormal: frac * 2^-24, which is exact
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	case 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// f8Table holds the values of the 256 codes of F8_E4M3 (no infinities, bias 7, NaN at all ones), of F8_E5M2 (the upper
// half of an F16): "FP8 Formats for Deep Learning", arXiv 2209.05433; or of F8_E8M0 (a power of two, bias 127, NaN at
// all ones): OCP Microscaling Formats v1.0, section 5.4.1.
func f8Table(dtype string) *[256]float32 {
	var table [256]float32
	for i := range table {
		switch dtype {
		case "F8_E5M2":
			table[i] = FromF16(uint16(i) << 8)
		case "F8_E8M0":
			table[i] = fromE8M0(uint8(i))
		default:
			table[i] = fromE4M3(uint8(i))
		}
	}
	return &table
}

func fromE8M0(c uint8) float32 {
	if c == 0xff {
		return float32(math.NaN())
	}
	return float32(math.Ldexp(1, int(c)-127))
}

func fromE4M3(c uint8) float32 {
	exp, frac := int(c>>3&0xf), float64(c&7)
	var x float64
	switch {
	case c&0x7f == 0x7f:
		x = math.NaN()
	case exp == 0:
		x = math.Ldexp(frac, -9)
	default:
		x = math.Ldexp(8+frac, exp-10)
	}
	if c&0x80 != 0 {
		x = math.Copysign(x, -1)
	}
	return float32(x)
}
