package kernels

import "math"

// Exp2Mode names the arithmetic of 2^x for x <= 0.
type Exp2Mode string

const (
	// Exp2Poly is Exp2: a polynomial in fp32 fma, which any device computes.
	Exp2Poly Exp2Mode = "poly"
	// Exp2Ex2h is Exp2H: the result of the instruction ex2.approx.ftz.f32 of an H200, where it costs one instruction.
	Exp2Ex2h Exp2Mode = "ex2h"
)

// Func is 2^x, x <= 0, by the mode.
func (m Exp2Mode) Func() func(x float32) float32 {
	if m == Exp2Ex2h {
		return Exp2H
	}
	return Exp2
}

// Exp2H is 2^x for x <= 0 by the definition "ex2h", the function that the instruction ex2.approx.ftz.f32 of an H200
// computes, in integers. It is defined for every such x: below -126, -Inf included, the result is +0 (it would be
// subnormal); at -126 it is 2^-126; both zeros and all x above -2^-23, subnormals too, give 1; NaN of any sign and
// payload gives the NaN 0x7fffffff. The relative error is at most 1.5e-7.
//
// |x| is cut to multiples of 2^-23. Its integer part moves the exponent. 2^-f of the fraction f is a quadratic in one
// of 64 segments, numbered by the upper 6 of the 23 bits of f in one's complement; the lower 17 bits are the argument
// xl, and q, about xl^2/2^19, is its truncated square:
//
//	significand = (C0*2^13 + C1*xl + C2*q + 30690) >> 15, and one more where f is 0
//
// The structure is that of the unit in NVIDIA's Tesla cards as envytools describes it (nvhw/sfu.c, M. Koscielnicki),
// and so are the tables; the H200 truncates |x| where those rounded it. Compared with the instruction on the full grid
// of 2^23+1 arguments in [-1, 0]: exp2_test.go has the hash.
func Exp2H(x float32) float32 {
	if x < -126 {
		return 0
	}
	if x != x {
		return math.Float32frombits(exp2HNaN)
	}
	t := int32(x * (1 << 23)) // exact, then cut: -|x| in units of 2^-23
	w := t - 1                // its one's complement below, the exponent above
	xl := w & (1<<17 - 1)
	c := &Exp2HSegments[w>>17&63]
	y := (int64(c[0])<<13 + int64(c[1])*int64(xl) + int64(c[2])*int64(truncatedSquare(xl)) + Exp2HRound) >> 15
	if t&(1<<23-1) == 0 {
		y++
	}
	return math.Float32frombits(uint32(int32(y) + w&^(1<<23-1) + 126<<23))
}

// truncatedSquare is x*x/2^19 of a 17-bit x from the partial products x_i*x_j*2^(i+j) with i+j >= 18 only; then one bit
// is truncated. All partial products of the upper 8 bits h count. Each of x_10 ... x_16 adds those of the lower 9 bits
// that reach column 18.
func truncatedSquare(x int32) int32 {
	h, low := x>>9, x&511
	q := h * h >> 1
	for j := 10; j <= 16; j++ {
		q += -(x >> j & 1) & (low >> (18 - j))
	}
	return q
}

const (
	Exp2HRound = 30690      // the constant of Exp2H's sum
	exp2HNaN   = 0x7fffffff // the NaN that the hardware makes
)

// Exp2HSegments are C0 (26 bits), C1 (16) and C2 (10) of each segment of Exp2H.
var Exp2HSegments = [64][3]int32{
	{33554432, 22713, 494}, {33919815, 22960, 501}, {34289179, 23210, 506}, {34662562, 23463, 511},
	{35040015, 23718, 518}, {35421574, 23977, 521}, {35807289, 24238, 527}, {36197206, 24502, 532},
	{36591369, 24768, 541}, {36989822, 25038, 546}, {37392613, 25311, 551}, {37799794, 25586, 559},
	{38211406, 25865, 564}, {38627501, 26147, 568}, {39048128, 26431, 577}, {39473334, 26719, 583},
	{39903170, 27010, 589}, {40337687, 27304, 596}, {40776934, 27602, 600}, {41220967, 27902, 609},
	{41669833, 28206, 615}, {42123589, 28513, 622}, {42582283, 28824, 627}, {43045974, 29138, 633},
	{43514714, 29455, 641}, {43988558, 29776, 647}, {44467562, 30100, 655}, {44951783, 30428, 661},
	{45441275, 30759, 670}, {45936098, 31094, 677}, {46436311, 31432, 686}, {46941968, 31775, 691},
	{47453132, 32121, 699}, {47969864, 32471, 705}, {48492222, 32824, 715}, {49020266, 33182, 721},
	{49554062, 33543, 730}, {50093671, 33908, 739}, {50639156, 34277, 748}, {51190579, 34651, 753},
	{51748008, 35028, 763}, {52311507, 35409, 773}, {52881143, 35795, 779}, {53456980, 36185, 787},
	{54039088, 36579, 796}, {54627535, 36977, 806}, {55222390, 37380, 813}, {55823722, 37787, 822},
	{56431604, 38198, 833}, {57046103, 38614, 842}, {57667294, 39035, 849}, {58295251, 39460, 858},
	{58930045, 39889, 870}, {59571751, 40324, 877}, {60220444, 40763, 887}, {60876202, 41207, 896},
	{61539101, 41655, 909}, {62209217, 42109, 917}, {62886631, 42568, 925}, {63571421, 43031, 938},
	{64263669, 43500, 946}, {64963455, 43973, 959}, {65670860, 44452, 969}, {66385969, 44936, 980},
}

// Exp2HChecksum is the checksum that a device's exp2 must have to use the definition "ex2h": the sum over i of
// mix(i<<32 | bits of 2^x_i), mod 2^64, where x_i is -i/2^23 for i in [0, 2^23] and has the bits 2^31 | i*0x9e3779b1
// mod 2^31 for the next 2^23 (every kind of negative number and NaN). mix is the finalizer of SplitMix64 (Steele, Lea,
// Flood 2014).
const Exp2HChecksum uint64 = 0x5cd3cf7728175e45
