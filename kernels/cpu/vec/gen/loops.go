package main

// elementwise is every elementwise loop, written like its Go version.
var elementwise = []loop{
	exp2SubLoop("exp2Sub", (*block).exp2), exp2SubLoop("exp2Sub"+ex2h, (*block).exp2h),
	{function{"scaleTo", "(dst, x []float32, a float32)"}, func(b *block, scalar func(string) *value) {
		b.store("dst", b.mul(b.load("x"), scalar("a")))
	}},
	{function{"scaleAdd", "(dst []float32, a float32, x []float32, b float32)"},
		func(b *block, scalar func(string) *value) {
			b.store("dst", b.add(b.mul(b.load("dst"), scalar("a")), b.mul(b.load("x"), scalar("b"))))
		}},
	{function{"add", "(dst, x, y []float32)"}, func(b *block, _ func(string) *value) {
		b.store("dst", b.add(b.load("x"), b.load("y")))
	}},
	{function{"mul", "(dst, x, y []float32)"}, func(b *block, _ func(string) *value) {
		b.store("dst", b.mul(b.load("x"), b.load("y")))
	}},
	{function{"addMul", "(dst, x []float32, a float32, y []float32)"}, func(b *block, scalar func(string) *value) {
		b.store("dst", b.add(b.load("dst"), b.mul(b.mul(b.load("x"), scalar("a")), b.load("y"))))
	}},
	{function{"normScale", "(dst, x []float32, a float32, w []float32)"}, func(b *block, scalar func(string) *value) {
		b.store("dst", b.mul(b.mul(b.load("x"), scalar("a")), b.load("w")))
	}},
	{function{"normGrad", "(dst, g, x []float32, rstd, c float32)"}, func(b *block, scalar func(string) *value) {
		b.store("dst", b.normGrad(scalar))
	}},
	{function{"normGradAdd", "(dst, g, x []float32, rstd, c float32)"}, func(b *block, scalar func(string) *value) {
		b.store("dst", b.add(b.load("dst"), b.normGrad(scalar)))
	}},
	{function{"rotate", "(lo, hi, xlo, xhi, cos, sin []float32)"}, func(b *block, _ func(string) *value) {
		b.storeBoth(b.rotate(b.load("xlo"), b.load("xhi")))
	}},
	{function{"normRotate", "(lo, hi, xlo, xhi, wlo, whi, cos, sin []float32, a float32)"},
		func(b *block, scalar func(string) *value) {
			x := b.mul(b.mul(b.load("xlo"), scalar("a")), b.load("wlo"))
			y := b.mul(b.mul(b.load("xhi"), scalar("a")), b.load("whi"))
			b.storeBoth(b.rotate(x, y))
		}},
	{function{"unrotate", "(lo, hi, xlo, xhi, cos, sin []float32)"}, func(b *block, _ func(string) *value) {
		b.storeBoth(b.unrotate(b.load("xlo"), b.load("xhi")))
	}},
	{function{"unrotateMul", "(lo, hi, xlo, xhi, wlo, whi, cos, sin []float32)"},
		func(b *block, _ func(string) *value) {
			x, y := b.unrotate(b.load("xlo"), b.load("xhi"))
			b.storeBoth(b.mul(x, b.load("wlo")), b.mul(y, b.load("whi")))
		}},
	{function{"unrotateAddMul", "(lo, hi, glo, ghi, xlo, xhi, cos, sin []float32, a float32)"},
		func(b *block, scalar func(string) *value) {
			x, y := b.unrotate(b.load("glo"), b.load("ghi"))
			x = b.mul(b.mul(b.load("xlo"), scalar("a")), x)
			y = b.mul(b.mul(b.load("xhi"), scalar("a")), y)
			b.storeBoth(b.add(b.load("lo"), x), b.add(b.load("hi"), y))
		}},
	swigluLoop("swiglu", (*block).exp2), swigluLoop("swiglu"+ex2h, (*block).exp2h),
	swigluGradLoop("swigluGrad", (*block).exp2), swigluGradLoop("swigluGrad"+ex2h, (*block).exp2h),
	{function{"adamW", "(master, m, v, grad []float32, s *adamW)"}, adamWLine},
	{function{"largest", "(most, x []float32)"}, func(b *block, _ func(string) *value) {
		b.store("most", b.do("VPMAXUD {1}, {0}, {d}", b.load("most"), b.and(b.load("x"), b.word("Magnitude"))))
	}},
	{function{"mxfp8", "(dst, x, most []float32)"}, mxfp8Line},
	{function{"widen", "(dst []float32, src []uint16)"}, func(b *block, _ func(string) *value) {
		b.store("dst", b.do("VPSLLD $16, {0}, {d}", b.load("src")))
	}},
	{function{"narrow", "(dst []uint16, src []float32)"}, narrowLine},
}

// ex2h ends the names of loops with exp2h in the place of exp2.
const ex2h = "Ex2h"

func exp2SubLoop(name string, exp2 exponential) loop {
	return loop{function{name, "(dst, x []float32, scale, m float32)"}, func(b *block, scalar func(string) *value) {
		t := b.mul(b.sub(b.load("x"), scalar("m")), scalar("scale"))
		t = b.do("VMINPS {0}, {1}, {d}", t, b.word("Zero")) // min gives its NaN here, and t of two zeros
		b.store("dst", exp2(b, t))
	}}
}

func swigluLoop(name string, exp2 exponential) loop {
	return loop{function{name, "(out, g, u []float32)"}, func(b *block, _ func(string) *value) {
		g := b.load("g")
		b.store("out", b.mul(b.mul(g, b.sigmoid(exp2, g)), b.load("u")))
	}}
}

func swigluGradLoop(name string, exp2 exponential) loop {
	return loop{function{name, "(dg, du, dout, g, u []float32)"}, func(b *block, _ func(string) *value) {
		g := b.load("g")
		s, one := b.sigmoid(exp2, g), b.word("One")
		d := b.load("dout")
		slope := b.mul(s, b.add(one, b.mul(g, b.sub(one, s))))
		dg := b.mul(b.mul(d, b.load("u")), slope)
		b.store("du", b.mul(d, b.mul(g, s)))
		b.store("dg", dg)
	}}
}

// normGrad is rstd*(g - (x*rstd)*c).
func (b *block) normGrad(scalar func(string) *value) *value {
	xh := b.mul(b.load("x"), scalar("rstd"))
	return b.mul(scalar("rstd"), b.sub(b.load("g"), b.mul(xh, scalar("c"))))
}

// rotate is the rotation of the pairs (x, y), unrotate its inverse.
func (b *block) rotate(x, y *value) (lo, hi *value) {
	c, s := b.load("cos"), b.load("sin")
	return b.sub(b.mul(x, c), b.mul(y, s)), b.add(b.mul(y, c), b.mul(x, s))
}

func (b *block) unrotate(x, y *value) (lo, hi *value) {
	c, s := b.load("cos"), b.load("sin")
	return b.add(b.mul(x, c), b.mul(y, s)), b.sub(b.mul(y, c), b.mul(x, s))
}

func (b *block) storeBoth(lo, hi *value) {
	b.store("lo", lo)
	b.store("hi", hi)
}

// adamWFields are the names of vec.adamW's fields in order.
var adamWFields = []string{"gradScale", "beta1", "rest1", "beta2", "rest2", "decay", "lr", "eps", "corr1", "corr2"}

func adamWLine(b *block, scalar func(string) *value) {
	g := b.mul(b.load("grad"), scalar("gradScale"))
	m := b.add(b.mul(scalar("beta1"), b.load("m")), b.mul(scalar("rest1"), g))
	b.store("m", m)
	v := b.add(b.mul(scalar("beta2"), b.load("v")), b.mul(b.mul(scalar("rest2"), g), g))
	b.store("v", v)
	b.store("grad", b.word("Zero"))
	w := b.load("master")
	w = b.sub(w, b.mul(scalar("decay"), w))
	root := b.add(b.sqrt(b.div(v, scalar("corr2"))), scalar("eps"))
	step := b.div(b.div(m, scalar("corr1")), root)
	b.store("master", b.sub(w, b.mul(scalar("lr"), step)))
}

// mxfp8Line is vec.MXFP8.
func mxfp8Line(b *block, _ func(string) *value) {
	most, x, zero := b.load("most"), b.load("x"), b.word("Zero")
	power := b.do("VPSRLD $23, {0}, {d}", b.addInts(most, b.word("MXFP8Carry")))
	power = b.do("VPMAXSD {1}, {0}, {d}", b.do("VPSUBD {1}, {0}, {d}", power, b.word("Eight")), zero)
	inverse := b.do("VPSLLD $23, {0}, {d}", b.do("VPSUBD {1}, {0}, {d}", b.word("InverseOne"), power))
	scale := b.do("VPMAXUD {1}, {0}, {d}", b.do("VPSLLD $23, {0}, {d}", power), b.word("SubnormalScale"))
	t := b.mul(b.and(x, b.word("Magnitude")), inverse)
	shift := b.do("VPMAXUD {1}, {0}, {d}", b.and(t, b.word("Infinity")), b.word("LeastE4M3"))
	shift = b.addInts(shift, b.word("Twenty"))
	y := b.mul(b.sub(b.add(t, shift), shift), scale)
	y = b.or(y, b.and(x, b.word("Sign")))
	if b.m == avx512 {
		y = b.do("VPTESTMD {0}, {0}, K2; VMOVAPS.Z {1}, K2, {d}", most, y)
		y = b.do("VPCMPD $5, {2}, {0}, K2; VBLENDMPS {3}, {1}, K2, {d}", most, y, b.word("Infinity"), b.word("NaN"))
	} else {
		y = b.do("VPANDN {1}, {0}, {d}", b.do("VPCMPEQD {1}, {0}, {d}", most, zero), y)
		odd := b.do("VPCMPGTD {1}, {0}, {d}", most, b.word("MostFinite"))
		y = b.do("VBLENDVPS {0}, {2}, {1}, {d}", odd, y, b.word("NaN"))
	}
	b.store("dst", y)
}

// narrowLine is kernels.RoundBF16: half a unit less one, plus the lowest bit kept; NaN is cut and made quiet.
func narrowLine(b *block, _ func(string) *value) {
	x := b.load("src")
	upper := b.do("VPSRLD $16, {0}, {d}", x)
	odd := b.do(b.bitwise("VPAND")+" {1}, {0}, {d}", upper, b.word("Bit"))
	sum := b.do("VPADDD {1}, {0}, {d}", b.do("VPADDD {1}, {0}, {d}", x, b.word("Half")), odd)
	rounded := b.do("VPSRLD $16, {0}, {d}", sum)
	quiet := b.do(b.bitwise("VPOR")+" {1}, {0}, {d}", upper, b.word("Quiet"))
	if b.m == avx512 {
		b.storeHalf("dst", b.do("VCMPPS $3, {0}, {0}, K2; VBLENDMPS {1}, {2}, K2, {d}", x, quiet, rounded))
		return
	}
	nan := b.do("VCMPPS $3, {0}, {0}, {d}", x)
	b.storeHalf("dst", b.do("VBLENDVPS {0}, {1}, {2}, {d}", nan, quiet, rounded))
}

// bitwise is the name of an integer operation, which AVX-512 spells with a width.
func (b *block) bitwise(op string) string {
	if b.m == avx512 {
		return op + "D"
	}
	return op
}
