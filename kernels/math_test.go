package kernels

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// ulps is the distance of two finite fp32 of one sign in units of the last place.
func ulps(a, b float32) int {
	return int(math.Float32bits(a)) - int(math.Float32bits(b))
}

// Every fourth fp32 of the polynomial's range above 2^-12 in size, both signs; below, 2^f is 1 + f ln 2 to half a unit
// and the range holds nothing new.
func TestExp2RelativeError(t *testing.T) {
	const bound = 6.8e-8
	worst := 0.0
	for b := math.Float32bits(0x1p-12); b <= math.Float32bits(0.5); b += 4 {
		for _, n := range []float32{-1, 0} {
			x := math.Float32frombits(b)
			if n == 0 {
				x = -x
			} else {
				x -= 1 // rounds for small f; the argument is then another fp32, which is as good
			}
			got, want := float64(Exp2(x)), math.Exp2(float64(x))
			worst = max(worst, math.Abs(got/want-1))
		}
	}
	t.Logf("largest relative error %.3g, %.2f times 2^-24", worst, worst*(1<<24))
	if worst > bound {
		t.Errorf("relative error %.3g, stated bound %.3g", worst, bound)
	}
	if worst < 1.0/(1<<24)/2 {
		t.Errorf("relative error %.3g is below what fp32 can give: the test measures nothing", worst)
	}
}

// The integer part only moves the exponent, so every binade down to the smallest normal has the bits of the first.
func TestExp2ScalesExactly(t *testing.T) {
	for n := -126; n <= 0; n++ {
		for _, f := range []float32{0, -0.25, -0.5, 0.25, 0.375} {
			x := float32(n) + f
			if x > 0 || x < -126 {
				continue
			}
			if got, want := Exp2(x), float32(math.Ldexp(float64(Exp2(f)), n)); got != want {
				t.Errorf("Exp2(%v) = %b, want %b", x, got, want)
			}
		}
	}
}

func TestExp2Edges(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {-1, 0.5}, {-126, 0x1p-126}, {math.Nextafter32(-126, -inf), 0},
		{-200, 0}, {-inf, 0},
		{-0x1p-149, 1}, {-0x1p-30, 1},
	} {
		if got := Exp2(c.x); math.Float32bits(got) != math.Float32bits(c.want) {
			t.Errorf("Exp2(%v) = %v, want %v", c.x, got, c.want)
		}
	}
	for _, bits := range []uint32{0x7fc00000, 0xffc00000, 0x7fffffff, 0xffffffff, 0x7fc001ff, 0x7f800001} {
		if got := Exp2(math.Float32frombits(bits)); got == got {
			t.Errorf("Exp2(NaN %#x) = %v", bits, got)
		}
	}
}

// Descending x must not raise 2^x by more than the one unit that rounding can, and never above 1: a coarse grid of [-2,
// 0], and every fp32 around the seam at -1/2, where the integer part changes.
func TestExp2Monotone(t *testing.T) {
	rises := 0
	for _, grid := range []struct {
		from, to float32
		step     uint32
	}{{0, 2, 101}, {0.49, 0.51, 1}, {1.49, 1.51, 1}} {
		previous := Exp2(-grid.from)
		for b := math.Float32bits(grid.from); b <= math.Float32bits(grid.to); b += grid.step {
			x := -math.Float32frombits(b)
			y := Exp2(x)
			if y > 1 || y <= 0 || ulps(y, previous) > 1 {
				t.Fatalf("Exp2(%v) = %v after %v", x, y, previous)
			}
			if y > previous {
				rises++
			}
			previous = y
		}
	}
	t.Logf("%d rises of one unit", rises)
}

// exactFMA rounds x*y+z once, by arbitrary precision. Signs of exact zeros and non-finite values are for the caller.
func exactFMA(x, y, z float32) float32 {
	p := new(big.Float).SetPrec(2000).Mul(big.NewFloat(float64(x)), big.NewFloat(float64(y)))
	f, _ := p.SetPrec(2000).Add(new(big.Float).SetPrec(2000).Set(p), big.NewFloat(float64(z))).Float32()
	return f
}

func TestFMAAgainstBigFloat(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	naive := 0
	for i := range 400_000 {
		x, y, z := adversarial(rng, i%8)
		got, want := FMA(x, y, z), exactFMA(x, y, z)
		if got != want || got == 0 && want != 0 {
			t.Fatalf("FMA(%b, %b, %b) = %b, want %b", x, y, z, got, want)
		}
		if float32(math.FMA(float64(x), float64(y), float64(z))) != want {
			naive++
		}
	}
	// The cases must include double roundings to be a test of them.
	if naive < 1000 {
		t.Errorf("only %d cases round twice where fp64 fma is rounded to fp32", naive)
	}
	t.Logf("%d cases in which a second rounding would be wrong", naive)
}

// adversarial draws finite operands whose sum is often half way between two fp32, or nearly, or subnormal, or cancels.
func adversarial(rng *rand.Rand, kind int) (x, y, z float32) {
	mantissa := func(bits int) float32 { return 1 + float32(rng.IntN(1<<bits))/float32(int(1)<<bits) }
	scale := func(v float32, e int) float32 { return float32(math.Ldexp(float64(v), e)) }
	x, y = mantissa(23), mantissa(23)
	switch kind {
	case 0: // half way: z is one unit of a large number, the product half of one and a little
		x, y = mantissa(11), mantissa(11)
		z = scale(mantissa(23), 24)
	case 1: // a half unit and a tiny rest below what fp64 holds
		x, y, z = 1+0x1p-23, scale(1-0x1p-24, -30), scale(mantissa(3), rng.IntN(8)-8)
	case 2: // subnormal results
		x, y, z = scale(x, -70), scale(y, -60-rng.IntN(25)), scale(mantissa(23), -127-rng.IntN(22))
	case 3: // cancellation
		z = -float32(x * y)
	case 4: // z is far below: only its sign and stickiness matter
		x, y, z = mantissa(12), 1+float32(2*rng.IntN(1<<11)+1)*0x1p-12, scale(mantissa(23), -40-rng.IntN(80))
	case 5: // a power of two and a product just beyond half of its unit
		x, y, z = 1+0x1p-12, scale(1+0x1p-12, -24), scale(1, rng.IntN(3))
		z = math.Nextafter32(z, float32(rng.IntN(2)*4))
	case 6: // any exponents
		x, y, z = scale(x, rng.IntN(120)-60), scale(y, rng.IntN(120)-60), scale(mantissa(23), rng.IntN(240)-120)
	default: // near one another
		z = scale(mantissa(23), rng.IntN(60)-30)
	}
	if rng.IntN(2) == 0 {
		x = -x
	}
	if rng.IntN(2) == 0 {
		z = -z
	}
	return x, y, z
}

func TestFMASpecialValues(t *testing.T) {
	inf, nan, maximum := float32(math.Inf(1)), float32(math.NaN()), float32(math.MaxFloat32)
	for _, c := range []struct{ x, y, z, want float32 }{
		{inf, 1, 0, inf}, {inf, -1, inf, nan}, {inf, 0, 1, nan}, {nan, 1, 1, nan}, {1, nan, 1, nan}, {1, 1, nan, nan},
		{1, 1, -inf, -inf}, {maximum, 2, 0, inf}, {maximum, 2, -maximum, maximum}, {maximum, 1, maximum, inf},
		{0, 1, 0, 0}, {2, 3, -6, 0},
	} {
		got := FMA(c.x, c.y, c.z)
		if got != c.want && (got == got || c.want == c.want) {
			t.Errorf("FMA(%v, %v, %v) = %v, want %v", c.x, c.y, c.z, got, c.want)
		}
	}
	if got := FMA(float32(math.Copysign(0, -1)), 1, float32(math.Copysign(0, -1))); math.Float32bits(got) != 1<<31 {
		t.Errorf("FMA of negative zeros is %v", got)
	}
}

func TestLnError(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	worst, near := 0.0, 0.0
	for range 2_000_000 {
		x := math.Float32frombits(rng.Uint32N(0x7f800000-0x00800000) + 0x00800000)
		got, want := float64(Ln(x)), math.Log(float64(x))
		worst = max(worst, math.Abs(got-want)/max(1, math.Abs(want)))
		x = 0.70710678 + rng.Float32()*0.70710678
		if want := math.Log(float64(x)); want != 0 {
			near = max(near, math.Abs(float64(Ln(x))/want-1))
		}
	}
	t.Logf("largest error %.3g of max(1, |ln x|); %.3g of ln x for x in [sqrt(1/2), sqrt(2))", worst, near)
	if worst > 1.3e-7 || near > 2.5e-7 {
		t.Errorf("errors %.3g and %.3g, stated 1.3e-7 and 2.5e-7", worst, near)
	}
	if got := Ln(1); got != 0 {
		t.Errorf("Ln(1) = %v", got)
	}
}

// The bits of Exp2 and Ln are part of the definition, which every device must meet: a change of either is a new version
// of it.
func TestMathBitsArePinned(t *testing.T) {
	hash := func(f func(float32) float32, from, to float32) uint64 {
		h := fnv.New64a()
		for b := math.Float32bits(from); b < math.Float32bits(to); b += 7919 {
			h.Write(binary.LittleEndian.AppendUint32(nil, math.Float32bits(f(math.Float32frombits(b)))))
		}
		return h.Sum64()
	}
	if got, want := hash(func(x float32) float32 { return Exp2(-x) }, 0, 130), uint64(0x8a886e2204a87ab5); got != want {
		t.Errorf("Exp2: hash %#x, pinned %#x", got, want)
	}
	if got, want := hash(Ln, 0x1p-126, math.MaxFloat32), uint64(0xdcef6b26d9947df7); got != want {
		t.Errorf("Ln: hash %#x, pinned %#x", got, want)
	}
}

func TestRoundBF16(t *testing.T) {
	for _, c := range []struct {
		bits uint32
		want uint16
	}{
		{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80},
		{0x80000000, 0x8000}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0},
		{0xffffffff, 0xffff}, {0x00008000, 0}, {0x00008001, 1},
	} {
		if got := RoundBF16(math.Float32frombits(c.bits)); got != c.want {
			t.Errorf("RoundBF16(%#x) = %#x, want %#x", c.bits, got, c.want)
		}
	}
	for h := range 1 << 16 {
		x := FromBF16(uint16(h))
		if got := RoundBF16(x); got != uint16(h) && (x == x || got != uint16(h)|0x40) {
			t.Fatalf("RoundBF16(FromBF16(%#x)) = %#x", h, got)
		}
	}
	// Nearest of the two neighbours, by distance in float64.
	rng := rand.New(rand.NewPCG(5, 6))
	for range 100_000 {
		x := math.Float32frombits(rng.Uint32N(0x7f000000))
		got := FromBF16(RoundBF16(x))
		half := float64(FromBF16(RoundBF16(x)&0x7f80)) * 0x1p-8
		if math.Abs(float64(got)-float64(x)) > max(half, 0x1p-134) {
			t.Fatalf("RoundBF16(%b) is %b", x, got)
		}
	}
}
