package main

import (
	"fmt"

	"lockstep/kernels"
)

func (b *block) add(x, y *value) *value { return b.do("VADDPS {1}, {0}, {d}", x, y) }
func (b *block) sub(x, y *value) *value { return b.do("VSUBPS {1}, {0}, {d}", x, y) }
func (b *block) mul(x, y *value) *value { return b.do("VMULPS {1}, {0}, {d}", x, y) }
func (b *block) div(x, y *value) *value { return b.do("VDIVPS {1}, {0}, {d}", x, y) }
func (b *block) sqrt(x *value) *value   { return b.do("VSQRTPS {0}, {d}", x) }

// word is a constant of 32 bits in every lane.
func (b *block) word(name string) *value {
	return b.shared("VMOVUPS vec" + name + "<>(SB), {d}")
}

// exp2 is kernels.Exp2, lane by lane. AVX-512 scales the polynomial by an instruction, which is exact in this range and
// keeps NaN.
func (b *block) exp2(x *value) *value {
	t := b.add(x, b.word("Magic"))
	n := b.sub(t, b.word("Magic"))
	f := b.sub(x, n)
	p := b.do("VMOVAPS {0}, {d}", b.word("Exp0"))
	for i := 1; i < len(kernels.Exp2Coeffs); i++ {
		p = b.over("VFMADD213PS {2}, {1}, {0}", p, f, b.word(fmt.Sprintf("Exp%d", i)))
	}
	if b.m == avx512 {
		return b.do("VCMPPS $5, {2}, {1}, K2; VSCALEFPS.Z {3}, {0}, K2, {d}", p, x, b.word("Least"), n)
	}
	shift := b.do("VPSLLD $23, {0}, {d}", t)
	number := b.do("VCMPPS $7, {0}, {0}, {d}", x)
	p = b.do("VPADDD {0}, {1}, {d}", b.do("VANDPS {0}, {1}, {d}", shift, number), p)
	return b.do("VANDPS {0}, {1}, {d}", b.do("VCMPPS $5, {1}, {0}, {d}", x, b.word("Least")), p)
}

// sigmoid is vec.sigmoid: e = exp2(-|x|*log2e); by the sign of x, 1/(1+e) or e/(1+e). For both zeros e is 1.
func (b *block) sigmoid(exp2 exponential, x *value) *value {
	e := exp2(b, b.mul(b.do("VORPS {1}, {0}, {d}", x, b.word("Sign")), b.word("Log2E")))
	one := b.word("One")
	pick := "VBLENDVPS {0}, {1}, {2}, {d}"
	if b.m == avx512 {
		pick = "VPMOVD2M {0}, K2; VBLENDMPS {1}, {2}, K2, {d}"
	}
	return b.div(b.do(pick, x, e, one), b.add(one, e))
}

// load is the present vector of a slice; lanes beyond its end are +0.
func (b *block) load(name string) *value {
	at := b.slices[name]
	half := b.kinds[name] == "[]uint16"
	switch {
	case half && b.tail && b.m == avx512:
		return b.do("VPMOVZXWD.Z " + at + ", K1, {d}")
	case half:
		return b.do("VPMOVZXWD " + at + ", {d}")
	case b.tail && b.m == avx512:
		return b.do("VMOVUPS.Z " + at + ", K1, {d}")
	case b.tail:
		return b.do("VMASKMOVPS " + at + ", Y15, {d}")
	}
	return b.do("VMOVUPS " + at + ", {d}")
}

// store writes the present vector of a slice, nothing beyond its end.
func (b *block) store(name string, v *value) {
	at := b.slices[name]
	switch {
	case b.tail && b.m == avx512:
		b.act("VMOVUPS {0}, K1, "+at, v)
	case b.tail:
		b.act("VMASKMOVPS {0}, Y15, "+at, v)
	default:
		b.act("VMOVUPS {0}, "+at, v)
	}
}

// storeHalf writes the lower 16 bits of each lane, the upper ones being 0.
func (b *block) storeHalf(name string, v *value) {
	at := b.slices[name]
	switch {
	case b.tail && b.m == avx512:
		b.act("VPMOVDW {0}, K1, "+at, v)
	case b.m == avx512:
		b.act("VPMOVDW {0}, "+at, v)
	default:
		packed := b.do("VPACKUSDW {0}, {0}, {d}; VPERMQ $8, {d}, {d}", v)
		b.act("VMOVUPS {0:X}, "+at, packed)
	}
}
