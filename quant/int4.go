package quant

import "math"

// INT4Group is how many weights in a row share a scale, as in Kimi K2.5's checkpoints (compressed-tensors, symmetric,
// group_size 32).
const INT4Group = 32

// RoundINT4Groups rounds a matrix w [rows, cols] in place to 4-bit integers with scales: groups of [INT4Group] along a
// row, the last one shorter, have a scale s = (largest |w|)/7 in fp32, and w = q*s with q = w/s rounded to the nearest
// integer, ties to even, within [-8, 7]. A group whose scale is 0 becomes +0; one with a number that is not finite
// becomes the NaN 0x7fc00000.
func RoundINT4Groups(w []float32, rows, cols int) {
	for r := range rows {
		row := w[r*cols : (r+1)*cols]
		for len(row) > 0 {
			n := min(INT4Group, len(row))
			roundINT4(row[:n])
			row = row[n:]
		}
	}
}

func roundINT4(group []float32) {
	var largest float32
	for _, x := range group {
		if x-x != 0 { // infinite or NaN
			for i := range group {
				group[i] = nan
			}
			return
		}
		largest = max(largest, x, -x)
	}
	scale := largest / 7
	for i, x := range group {
		if scale == 0 {
			group[i] = 0
			continue
		}
		q := math.RoundToEven(float64(x / scale))
		group[i] = float32(min(max(q, -8), 7)) * scale
	}
}

// DecodeINT4Groups decodes a matrix [rows, cols] packed by compressed-tensors (format pack-quantized, 4 bits,
// symmetric): dst = (nibble - 8) * scale, the product rounded to fp32, which is exact for scales of bf16
// or fp16. A row of packed is ceil(cols/8) little-endian words of 32 bits, column c in the 4 bits from 4*(c mod 8) on;
// scales are [rows, ceil(cols/group)] (pack_to_int32 of github.com/neuralmagic/compressed-tensors).
func DecodeINT4Groups(dst []float32, packed []byte, scales []float32, rows, cols, group int) {
	stride, groups := (cols+7)/8*4, (cols+group-1)/group
	for r := range rows {
		to, from, own := dst[r*cols:][:cols], packed[r*stride:][:stride], scales[r*groups:][:groups]
		for c := range to {
			code := from[c/2] >> (4 * (c & 1)) & 15
			to[c] = (float32(code) - 8) * own[c/group]
		}
	}
}
