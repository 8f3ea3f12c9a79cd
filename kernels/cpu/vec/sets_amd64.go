package vec

// sets is the loops of each instruction set.
var sets = map[string]loops{"avx512": avx512, "avx2": avx2, "portable": portable}

// setsEx2h is the loops that differ with exp2 "ex2h".
var setsEx2h = map[string]loops{"avx512": avx512Ex2h, "avx2": avx2Ex2h, "portable": portableEx2h}

//go:generate go run ./gen -o .

// vector2 is the number of fp32 in a register of AVX2, whose 16-bit loops take full vectors only.
const vector2 = 8

func widenTail(dst []float32, src []uint16) {
	n := len(src) &^ (vector2 - 1)
	widenAVX2(dst[:n], src[:n])
	widenGo(dst[n:], src[n:])
}

func narrowTail(dst []uint16, src []float32) {
	n := len(src) &^ (vector2 - 1)
	narrowAVX2(dst[:n], src[:n])
	narrowGo(dst[n:], src[n:])
}
