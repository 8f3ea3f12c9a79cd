package kernels

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"
)

// measured is the SHA-256 of ex2.approx.ftz.f32 of an H200 at -i/2^23, i = 0 ... 2^23, times 2^24, as little-endian
// uint32.
const measured = "30e5ca0d8be25da12dbb4d37dd311b8fe72388b8a3a25f99f45dd174fe3a6936"

func TestExp2HIsTheInstruction(t *testing.T) {
	h := sha256.New()
	var buf []byte
	worst := 0.0
	for i := range 1<<23 + 1 {
		x := -float32(i) / (1 << 23)
		y := float64(Exp2H(x))
		buf = binary.LittleEndian.AppendUint32(buf, uint32(y*(1<<24)))
		worst = max(worst, math.Abs(y/math.Exp2(float64(x))-1))
		if len(buf) > 1<<16 {
			h.Write(buf)
			buf = buf[:0]
		}
	}
	h.Write(buf)
	if got := hex.EncodeToString(h.Sum(nil)); got != measured {
		t.Errorf("the grid has hash %s, an H200 %s", got, measured)
	}
	t.Logf("largest relative error %.3g", worst)
	if worst > 1.5e-7 {
		t.Errorf("relative error %.3g, stated 1.5e-7", worst)
	}
}

// The hardware adds x>>(18-b) for each set bit b of x and cuts a bit of the sum; truncatedSquare takes half the
// additions.
func TestTruncatedSquare(t *testing.T) {
	exact := 0
	for x := range int32(1 << 17) {
		want := int32(0)
		for b := range 17 {
			if x>>b&1 == 1 {
				want += x >> (18 - b)
			}
		}
		if got := truncatedSquare(x); got != want>>1 {
			t.Fatalf("truncatedSquare(%d) = %d, want %d", x, got, want>>1)
		}
		if int64(x)*int64(x)>>19 == int64(want>>1) {
			exact++
		}
	}
	if exact > 1<<16 {
		t.Errorf("%d of 2^17 squares are not truncated: the test shows little", exact)
	}
}

// An argument finer than 2^-23 is cut to the grid, and the integer part moves the exponent only.
func TestExp2HScales(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2_000_000 {
		x := -rng.Float32() * float32(math.Exp2(float64(rng.IntN(40)-32)))
		if x < -126 {
			continue
		}
		n, f := math.Modf(math.Trunc(float64(x)*(1<<23)) / (1 << 23))
		if got, want := Exp2H(x), float32(math.Ldexp(float64(Exp2H(float32(f))), int(n))); got != want {
			t.Fatalf("Exp2H(%b) = %b, want %b", x, got, want)
		}
	}
}

func TestExp2HEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {-1, 0.5}, {-126, 0x1p-126}, {math.Nextafter32(-126, -inf), 0},
		{-127, 0}, {-1e30, 0}, {-inf, 0},
		{-0x1p-149, 1}, {-0x1p-127, 1}, {math.Nextafter32(-0x1p-23, 0), 1}, {-0x1p-23, 1 - 0x1p-23},
		{math.Nextafter32(-0x1p-22, 0), 1 - 0x1p-23},
	} {
		if got := Exp2H(c.x); math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("Exp2H(%b) = %b, want %b", c.x, got, c.want)
		}
	}
	for _, bits := range []uint32{0x7fc00000, 0xffc00000, 0x7fffffff, 0xffffffff, 0x7fc001ff, 0x7f800001, 0xff800001} {
		if got := math.Float32bits(Exp2H(math.Float32frombits(bits))); got != 0x7fffffff {
			t.Errorf("Exp2H(NaN %#x) = %#x", bits, got)
		}
	}
}

func TestExp2HChecksum(t *testing.T) {
	sum := func(f func(float32) float32) (sum uint64) {
		const grid = 1 << 23
		for i := range uint32(2*grid + 1) {
			x := -float32(i) / grid
			if i > grid {
				x = math.Float32frombits(i*0x9e3779b1 | 1<<31)
			}
			z := uint64(i)<<32 | uint64(math.Float32bits(f(x)))
			z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
			z = (z ^ z>>27) * 0x94d049bb133111eb
			sum += z ^ z>>31
		}
		return sum
	}
	if got := sum(Exp2H); got != Exp2HChecksum {
		t.Errorf("checksum %#x, stated %#x", got, Exp2HChecksum)
	}
	if sum(Exp2) == Exp2HChecksum {
		t.Error("another function has the checksum too")
	}
}

func TestExp2ModesDiffer(t *testing.T) {
	differ := 0
	for i := range 1000 {
		if x := -float32(i) / 1000; Exp2Poly.Func()(x) != Exp2Ex2h.Func()(x) {
			differ++
		}
	}
	if differ < 100 {
		t.Errorf("the modes differ at %d of 1000 arguments", differ)
	}
	d, h := Default(), Default()
	h.Exp2 = Exp2Ex2h
	if d.Validate() != nil || h.Validate() != nil {
		t.Error("a mode of exp2 is refused")
	}
	if d.Digest() == h.Digest() {
		t.Error("the digest does not cover exp2")
	}
	if h.Exp2 = "fast"; h.Validate() == nil {
		t.Error("exp2 \"fast\" is accepted")
	}
}
