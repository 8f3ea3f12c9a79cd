package cpu

import (
	"math"
	"math/bits"

	"lockstep/kernels"
)

// view is a matrix whose element (i, j) is X[i*RS+j*CS].
type view struct {
	X      []float32
	RS, CS int
}

// tile is c[i, j] = dot over ascending k of a(i, k)*b(k, j), started from c[i, j], for c [m, n] with rows ldc apart. Operands of
// DotTC16 are bf16 values; its steps of 16 start at k = 0.
func (d *Device) tile(c []float32, ldc, m, n, k int, a, b view) {
	dot := fmaDot
	if d.def.Dot == kernels.DotTC16 {
		dot = tc16Dot
	}
	x, y := make([]float32, k), make([]float32, k)
	for j := range n {
		for l := range y {
			y[l] = b.X[l*b.RS+j*b.CS]
		}
		for i := range m {
			for l := range x {
				x[l] = a.X[i*a.RS+l*a.CS]
			}
			c[i*ldc+j] = dot(c[i*ldc+j], x, y)
		}
	}
}

func fmaDot(acc float32, x, y []float32) float32 {
	for i, v := range x {
		acc = kernels.FMA(v, y[i], acc)
	}
	return acc
}

func tc16Dot(acc float32, x, y []float32) float32 {
	for from := 0; from < len(x); from += 16 {
		to := min(from+16, len(x))
		acc = tc16Step(acc, x[from:to], y[from:to])
	}
	return acc
}

// tc16Term is a value m * 2^(e-46) with |m| in [2^46, 2^48).
type tc16Term struct {
	m int64
	e int
}

// tc16Step is one step of kernels.DotTC16: at most 16 exact products and the accumulator, each truncated toward zero to a multiple
// of 2^(top-25), top being the largest exponent among them; the exact sum is truncated toward zero to fp32. Zeros take no part,
// subnormal numbers count with the exponent of their leading bit. With an infinity or NaN among the terms the result is their plain sum.
func tc16Step(acc float32, x, y []float32) float32 {
	var terms [17]tc16Term
	n, top, plain := 0, math.MinInt32, float64(acc)
	if m, e := significand(acc); m != 0 {
		terms[0], n, top = tc16Term{m << 23, e}, 1, e
	}
	for i, v := range x {
		plain += float64(v) * float64(y[i])
		mx, ex := significand(v)
		my, ey := significand(y[i])
		if mx != 0 && my != 0 {
			terms[n] = tc16Term{mx * my, ex + ey}
			top = max(top, ex+ey)
			n++
		}
	}
	if plain-plain != 0 {
		return float32(plain)
	}
	sum := int64(0)
	for _, t := range terms[:n] {
		shift := min(21+top-t.e, 63)
		if t.m < 0 {
			sum -= -t.m >> shift
		} else {
			sum += t.m >> shift
		}
	}
	return truncated(sum, top-25)
}

// significand splits a finite x as m * 2^(e-23) with |m| in [2^23, 2^24), or 0.
func significand(x float32) (m int64, e int) {
	b := math.Float32bits(x)
	m, e = int64(b&0x7fffff), max(int(b>>23&0xff), 1)-127
	if b&0x7f800000 != 0 {
		m |= 1 << 23
	}
	if m == 0 {
		return 0, 0
	}
	up := bits.LeadingZeros64(uint64(m)) - 40
	m, e = m<<up, e-up
	if b>>31 != 0 {
		m = -m
	}
	return m, e
}

// truncated is m * 2^e rounded toward zero to fp32, 0 as +0.
func truncated(m int64, e int) float32 {
	abs := uint64(max(m, -m))
	if drop := max(bits.Len64(abs)-24, -149-e); drop > 0 {
		abs, e = abs>>min(drop, 63), e+drop
	}
	v := float32(math.Ldexp(float64(abs), e))
	if m < 0 {
		return -v
	}
	return v
}
