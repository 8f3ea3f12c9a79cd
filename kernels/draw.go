package kernels

import "lockstep/quant"

// Draw says how a weight is drawn that no checkpoint holds. Element i depends on the key and i alone, and takes no
// transcendental function: every device draws the same bits.
type Draw struct {
	Kind  DrawKind
	Key   uint64
	First int     // which element the first one of a tensor is
	Scale float64 // of DrawConstant the number, of DrawUniform the bound, of DrawNormal the standard deviation
}

// DrawKind names a distribution.
type DrawKind string

const (
	DrawConstant DrawKind = "constant"
	DrawUniform  DrawKind = "uniform" // on [-Scale, Scale)
	DrawNormal   DrawKind = "normal"
)

// Values are elements of a tensor, from one on.
func (d Draw) Values(out []float32, from int) {
	at := uint64(d.First + from)
	switch d.Kind {
	case DrawUniform:
		for i := range out {
			out[i] = float32((2*DrawnUniform(d.Key, at+uint64(i)) - 1) * d.Scale)
		}
	case DrawNormal:
		for i := range out {
			out[i] = float32(DrawnNormal(d.Key, at+uint64(i)) * d.Scale)
		}
	default:
		for i := range out {
			out[i] = float32(d.Scale)
		}
	}
}

// DrawnUniform is number i of [0, 1) that a key draws, a multiple of 2^-53.
func DrawnUniform(key, i uint64) float64 {
	return float64(float64(mix(key+i*golden)>>11) / (1 << 53)) // no multiply-add of the caller's: see .ci/run
}

// DrawnNormal is standard normal variate i of a key, as the sum of twelve 16-bit uniforms (Irwin-Hall): an integer
// over 2^16.
func DrawnNormal(key, i uint64) float64 {
	var sum uint64 // two sums of six, 32 bits each
	for j := range uint64(3) {
		w := mix(key + (3*i+j+1)*golden)
		sum += w&0x0000ffff_0000ffff + w>>16&0x0000ffff_0000ffff
	}
	return float64(int(sum&0xffffffff+sum>>32)-6*0xffff) / (1 << 16)
}

// DrawnCodes are bytes 8i ... 8i+7 of the codes of matrix g that a key draws, the first in the low byte. INT4: uniform
// on [-7, 7], and 0 for the 16th. E4M3: from 0.5 to 1.875 of a size. E2M1: all codes alike.
func DrawnCodes(code quant.Code, key uint64, g, i int) uint64 {
	w := mix(key + uint64(g)<<40 + uint64(i)*golden)
	switch code {
	case quant.CodeINT4: // codes of 0, which would be -8, become 8
		some := w | w>>1
		some |= some >> 2
		return w | ^some&0x1111_1111_1111_1111<<3
	case quant.CodeE4M3:
		return w&0x8f8f_8f8f_8f8f_8f8f | 0x3030_3030_3030_3030
	}
	return w
}

// DrawKey mixes what a key is made of.
func DrawKey(x uint64) uint64 { return mix(x) }

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
