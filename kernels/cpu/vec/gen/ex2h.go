package main

import (
	"fmt"
	"math"
	"strings"

	"lockstep/kernels"
)

// exponential is exp2 or exp2h.
type exponential func(b *block, x *value) *value

// exp2h is kernels.Exp2H, lane by lane and in integers. With C1 less 2^15 the sum of a segment fits 32 bits:
//
//	Y = (C0>>2) + xl + ((C0&3)<<13 + (C1-2^15)*xl + C2*q + 30690)>>15
//
// The table Base has C0 with the exponent's 126 above, the table Slope C1-2^15 and C2 as two int16, which VPMADDWD
// multiplies by the two lower bits of xl and q, and by the upper 15 bits of xl.
func (b *block) exp2h(x *value) *value {
	t := b.do("VCVTTPS2DQ {0}, {d}", b.mul(x, b.word("Grid")))
	w := b.addInts(t, b.word("Ones"))
	base, slope := b.segment(w)
	xl := b.and(w, b.word("Low17"))
	parts := b.or(b.and(b.truncatedSquare(w), b.word("Upper")), b.and(w, b.word("Three")))
	coarse := b.do("VPSLLD $2, {0}, {d}", b.do("VPMADDWD {1}, {0}, {d}", slope, b.do("VPSRLD $2, {0}, {d}", xl)))
	sum := b.addInts(coarse, b.do("VPMADDWD {1}, {0}, {d}", slope, parts))
	sum = b.addInts(sum, b.do("VPSLLD $13, {0}, {d}", b.and(base, b.word("Three"))))
	y := b.do("VPSRAD $15, {0}, {d}", b.addInts(sum, b.word("Round")))
	y = b.addInts(y, b.do("VPSRLD $2, {0}, {d}", base))
	y = b.addInts(y, b.and(w, b.word("NoSegment"))) // xl, and the exponent's part of the argument
	return b.edges(x, t, y)
}

// segment looks w's segment up in both tables. AVX-512 permutes them, by bits 17-21 and then 22 of w.
func (b *block) segment(w *value) (base, slope *value) {
	at := b.do("VPSRLD $17, {0}, {d}", w)
	if b.m == avx512 {
		b.act("VPTESTMD {1}, {0}, K3", w, b.word("Bit22"))
		return b.permute("Base", at), b.permute("Slope", at)
	}
	at = b.and(at, b.word("Segment"))
	return b.gather("Base", at), b.gather("Slope", at)
}

func (b *block) permute(table string, at *value) *value {
	quarter := func(i int) *value { return b.shared(fmt.Sprintf("VMOVUPS vec%s<>+%d(SB), {d}", table, 64*i)) }
	half := func(i int) *value {
		return b.over("VPERMI2D {2}, {1}, {0}", b.do("VMOVDQA32 {0}, {d}", at), quarter(i), quarter(i+1))
	}
	return b.do("VPBLENDMD {1}, {0}, K3, {d}", half(0), half(2))
}

func (b *block) gather(table string, at *value) *value {
	v, all := new(value), b.do("VPCMPEQD {d}, {d}, {d}")
	b.steps = append(b.steps, step{text: "LEAQ vec" + table + "<>(SB), BX; VPGATHERDD {1}, (BX)({0}*4), {d}",
		args: []*value{at, all}, dst: v, apart: true})
	return v
}

// truncatedSquare is q in the upper half of each lane. A product of 16 bits whose upper half is kept is a conditional,
// truncated shift: with x_j alone of V = xl>>2, l*V>>16 is x_j*(l>>(18-j)). Each lane does two at a time, and h*h>>1
// takes the place of an eighth.
func (b *block) truncatedSquare(w *value) *value {
	twice := func(x *value) *value {
		return b.do("VPSHUFB {1}, {0}, {d}", x, b.shared("VMOVUPS vecTwice<>(SB), {d}"))
	}
	high := func(x, y *value) *value { return b.do("VPMULHUW {1}, {0}, {d}", x, y) }
	words := func(x, y *value) *value { return b.do("VPADDW {1}, {0}, {d}", x, y) }
	v := twice(b.do("VPSRLD $2, {0}, {d}", w))
	low := b.and(twice(w), b.word("Low9"))
	q := high(low, b.and(v, b.word("Bits16and15")))
	q = words(q, high(low, b.and(v, b.word("Bits14and13"))))
	q = words(q, high(low, b.and(v, b.word("Bits12and11"))))
	square := b.or(b.and(words(v, v), b.word("UpperByte")), b.and(low, b.word("Lower")))
	q = words(q, high(square, b.and(v, b.word("Bit10andSquare"))))
	return b.addInts(q, b.do("VPSLLD $16, {0}, {d}", q))
}

// edges adds 1 to y where the fraction of t is 0, and handles NaN and arguments below -126.
func (b *block) edges(x, t, y *value) *value {
	if b.m == avx512 {
		y = b.over("VPTESTNMD {1}, {2}, K2; VPSUBD {3}, {0}, K2, {0}", y, t, b.word("Low23"), b.word("Ones"))
		y = b.over("VCMPPS $3, {1}, {1}, K2; VMOVDQA32 {2}, K2, {0}", y, x, b.word("Made"))
		return b.do("VCMPPS $5, {2}, {1}, K2; VMOVDQA32.Z {0}, K2, {d}", y, x, b.word("Least"))
	}
	integral := b.do("VPCMPEQD {1}, {0}, {d}", b.and(t, b.word("Low23")), b.word("Zero"))
	y = b.do("VPSUBD {1}, {0}, {d}", y, integral)
	y = b.do("VANDPS {0}, {1}, {d}", b.do("VCMPPS $5, {1}, {0}, {d}", x, b.word("Least")), y)
	return b.do("VBLENDVPS {0}, {1}, {2}, {d}", b.do("VCMPPS $3, {0}, {0}, {d}", x), b.word("Made"), y)
}

func (b *block) addInts(x, y *value) *value { return b.do("VPADDD {1}, {0}, {d}", x, y) }
func (b *block) and(x, y *value) *value {
	return b.do(b.bitwise("VPAND")+" {1}, {0}, {d}", x, y)
}
func (b *block) or(x, y *value) *value { return b.do(b.bitwise("VPOR")+" {1}, {0}, {d}", x, y) }

// ex2hWords are the constants of exp2h.
var ex2hWords = []word{
	{"Grid", math.Float32bits(1 << 23)}, {"Ones", math.MaxUint32}, {"Low17", 1<<17 - 1}, {"Low23", 1<<23 - 1},
	{"Three", 3}, {"Round", kernels.Exp2HRound},
	{"NoSegment", ^uint32(63 << 17)}, {"Segment", 63}, {"Bit22", 1 << 22}, {"Made", 0x7fffffff}, {"Low9", 0x01ff01ff},
	{"Upper", 0xffff0000}, {"Lower", 0x0000ffff},
	{"Bits16and15", 1<<14 | 1<<(13+16)}, {"Bits14and13", 1<<12 | 1<<(11+16)}, {"Bits12and11", 1<<10 | 1<<(9+16)},
	{"Bit10andSquare", 1<<8 | 0x7f80<<16}, {"UpperByte", 0xff000000},
}

// ex2hTables are the segments, and the shuffle that puts the lower half of a lane in both.
func ex2hTables(out *strings.Builder, m *isa) {
	segments := &kernels.Exp2HSegments
	out.WriteString("\n")
	table(out, "vecBase", len(segments), func(i int) uint32 { return uint32(segments[i][0]) + 126<<25 })
	out.WriteString("\n")
	table(out, "vecSlope", len(segments), func(i int) uint32 {
		return uint32(segments[i][1]-1<<15)&0xffff | uint32(segments[i][2])<<16
	})
	out.WriteString("\n")
	table(out, "vecTwice", m.lanes, func(i int) uint32 { return 0x01000100 + 0x04040404*uint32(i%4) })
}
