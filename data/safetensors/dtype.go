package safetensors

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

// safetensorsBits is the width in bits of one element of each data type of the format
// (github.com/huggingface/safetensors, safetensors/src/tensor.rs, enum Dtype).
var safetensorsBits = map[string]uint64{
	"F4":      4,
	"F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"U16": 16, "I16": 16, "F16": 16, "BF16": 16,
	"U32": 32, "I32": 32, "F32": 32,
	"U64": 64, "I64": 64, "F64": 64, "C64": 64,
}

// safetensorsBytes is the size in bytes of a tensor. Sub-byte types must fill whole bytes.
func safetensorsBytes(dtype string, shape []int) (uint64, error) {
	width, ok := safetensorsBits[dtype]
	if !ok {
		known := slices.Sorted(maps.Keys(safetensorsBits))
		return 0, fmt.Errorf("unknown dtype %q: convert it to one of %s", dtype, strings.Join(known, ", "))
	}
	total := width
	for _, n := range shape {
		hi, lo := bits.Mul64(total, uint64(n))
		if n < 0 || hi != 0 || lo > maxTensorBits {
			return 0, fmt.Errorf("shape %v has too many elements: the header is damaged, fetch the file again", shape)
		}
		total = lo
	}
	if total%8 != 0 {
		return 0, fmt.Errorf("shape %v of %s ends inside a byte: pad the last dimension", shape, dtype)
	}
	return total / 8, nil
}

// maxTensorBits keeps sizes and their sums far from overflow: 2^57 bytes.
const maxTensorBits = 1 << 60
