package vec

import "math"

// mxfp8Block is how many numbers share a scale in MXFP8.
const mxfp8Block = 32

// Largest makes most[i] the larger of most[i] and the magnitude of x[i]. A NaN is larger than every number.
func (o *Ops) Largest(most, x []float32) { o.largest(most[:len(x)], x) }

func largestGo(most, x []float32) {
	for i, v := range x {
		most[i] = math.Float32frombits(max(math.Float32bits(most[i]), magnitude(v)))
	}
}

func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// BlockLargest is the largest magnitude of each block of x, as [Ops.Largest] compares, in the place of each of its
// numbers. Blocks are of 32, the last one shorter.
func (o *Ops) BlockLargest(most, x []float32) {
	whole := len(x) / mxfp8Block * mxfp8Block
	o.blockLargest(x[:whole], most[:whole])
	blockLargestGo(x[whole:], most[whole:len(x)])
}

func blockLargestGo(x, most []float32) {
	for len(x) > 0 {
		n := min(len(x), mxfp8Block)
		largest := uint32(0)
		for _, v := range x[:n] {
			largest = max(largest, magnitude(v))
		}
		for i := range n {
			most[i] = math.Float32frombits(largest)
		}
		most, x = most[n:], x[n:]
	}
}

// MXFP8 is what E4M3 leaves of x[i] in a block whose largest magnitude is most[i] ([quant.MXFP8]). dst may be x.
//
// With the scale 2^e, e the least from -127 on with most <= 448*2^e, t = |x|*2^-e is rounded to the nearest multiple of
// 2^(k-3), 2^k the power of two of t or 2^-6 if that is larger, by adding 2^(k+20) and taking it away again: there fp32
// lie that far apart. The scale never clips.
func (o *Ops) MXFP8(dst, x, most []float32) { o.mxfp8(dst[:len(x)], x, most[:len(x)]) }

func mxfp8Go(dst, x, most []float32) {
	for i, v := range x {
		m := math.Float32bits(most[i])
		power := uint32(max(int32((m+mxfp8Carry)>>23)-8, 0))
		scale := math.Float32frombits(max(power<<23, subnormalScale))
		t := float32(math.Float32frombits(magnitude(v)) * math.Float32frombits((254-power)<<23))
		shift := math.Float32frombits(max(math.Float32bits(t)&infinity, leastE4M3) + 20<<23)
		y := float32(float32(t+shift)-shift) * scale
		switch {
		case m == 0:
			dst[i] = 0
		case m >= infinity:
			dst[i] = math.Float32frombits(quietNaN)
		default:
			dst[i] = math.Float32frombits(math.Float32bits(y) | math.Float32bits(v)&(1<<31))
		}
	}
}

const (
	infinity       = 0x7f800000
	quietNaN       = 0x7fc00000
	subnormalScale = 0x400000   // 2^-127
	leastE4M3      = 0x3c800000 // 2^-6, the least E4M3 that is not subnormal
	mxfp8Carry     = 0x1fffff   // carries into the exponent above a significand of 1.75
)
