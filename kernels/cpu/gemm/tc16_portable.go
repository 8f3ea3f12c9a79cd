package gemm

import (
	"unsafe"
)

// The portable kernel of steps works on integers: a bf16 significand of 8 bits with its sign, and an exponent. A
// product of two significands in [2^14, 2^16) stands for [1, 4), so term and accumulator are significand << 11 >> (top
// - exponent), and acc << 2 >> (top - exponent).

const (
	zeroExponent = -1 << 20 // of zero: shifting by it gives 0
	productShift = fraction - 14
	accShift     = fraction - 23
)

var steps16Go = []stepKernel{steps1Go}

func split16Go(significand, exponent *uint32, x *float32, n int) bool {
	values := unsafe.Slice(x, n)
	s, e := unsafe.Slice((*int32)(unsafe.Pointer(significand)), n), unsafe.Slice((*int32)(unsafe.Pointer(exponent)), n)
	for i, v := range values {
		if !finite(v) {
			return false
		}
		m, ev := splitFP32(v)
		s[i], e[i] = int32(m>>16), int32(ev)
		if m == 0 {
			e[i] = zeroExponent
		}
	}
	return true
}

func steps1Go(count int, as, ae *uint32, _ int, bs, be *uint32, c *float32, _ int, fresh bool) bool {
	n := count * steps
	xs, xe := unsafe.Slice((*int32)(unsafe.Pointer(as)), n), unsafe.Slice((*int32)(unsafe.Pointer(ae)), n)
	ys, ye := unsafe.Slice((*[stepCols]int32)(unsafe.Pointer(bs)), n),
		unsafe.Slice((*[stepCols]int32)(unsafe.Pointer(be)), n)
	row := (*[stepCols]float32)(unsafe.Pointer(c))
	var out [stepCols]float32
	for j := range out {
		acc := float32(0)
		if !fresh {
			acc = row[j]
		}
		for l := 0; l < n; l += steps {
			if !finite(acc) {
				return false
			}
			acc = stepGo(acc, (*[steps]int32)(xs[l:]), (*[steps]int32)(xe[l:]), (*[steps][stepCols]int32)(ys[l:]),
				(*[steps][stepCols]int32)(ye[l:]), j)
		}
		out[j] = acc
	}
	*row = out
	return true
}

// stepGo is Step16 of finite operands that are split.
func stepGo(acc float32, xs, xe *[steps]int32, ys, ye *[steps][stepCols]int32, j int) float32 {
	m, e := splitFP32(acc)
	top := int32(e)
	if m == 0 {
		top = zeroExponent
	}
	var exponents [steps]int32
	for l := range steps {
		exponents[l] = xe[l] + ye[l][j]
		top = max(top, exponents[l])
	}
	if top <= zeroExponent/2 {
		return 0
	}
	sum := shifted(m<<accShift, uint(int(top)-e))
	for l := range steps {
		product := xs[l] * ys[l][j]
		sign := product >> 31
		magnitude := uint32((product^sign)-sign) << productShift >> uint32(min(top-exponents[l], 31)&31)
		sum += int64((int32(magnitude) ^ sign) - sign)
	}
	return truncated(sum, int(top)-fraction)
}

// shifted is x >> n, toward zero.
func shifted(x int64, n uint) int64 {
	sign := x >> 63
	return int64(uint64((x^sign)-sign)>>n) ^ sign - sign
}
