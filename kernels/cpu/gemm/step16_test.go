package gemm

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// step16Big is a step as the definition states it, in arbitrary precision.
func step16Big(acc float32, x, y *[steps]float32) float32 {
	type term struct {
		value    *big.Float
		exponent int
	}
	exact := func(v float32) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(float64(v)) }
	var terms []term
	top := math.MinInt32
	add := func(v *big.Float, exponent int) {
		if v.Sign() != 0 {
			terms = append(terms, term{v, exponent})
			top = max(top, exponent)
		}
	}
	add(exact(acc), math.Ilogb(float64(acc)))
	for i := range x {
		add(new(big.Float).SetPrec(2000).Mul(exact(x[i]), exact(y[i])), math.Ilogb(float64(x[i]))+
			math.Ilogb(float64(y[i])))
	}
	sum := new(big.Int)
	for _, t := range terms {
		units, _ := new(big.Float).SetMantExp(t.value, 25-top).Int(nil) // toward zero
		sum.Add(sum, units)
	}
	v := new(big.Float).SetPrec(24).SetMode(big.ToZero).SetInt(sum)
	if sum.Sign() == 0 {
		return 0
	}
	v.SetMantExp(v, top-25)
	limit := new(big.Float).SetMantExp(big.NewFloat(1), 128)
	if new(big.Float).Abs(v).Cmp(limit) >= 0 {
		return float32(math.Inf(v.Sign()))
	}
	// Below the normal numbers the last bit is 2^-149.
	units, _ := new(big.Float).SetMantExp(v, 149).Int(nil)
	if exponent := v.MantExp(nil); exponent < -125 {
		v = new(big.Float).SetMantExp(new(big.Float).SetInt(units), -149)
	}
	f, _ := v.Float32()
	return f + 0
}

// spread draws a bf16 value whose exponent lies within width of centre, sometimes zero.
func spread(rng *rand.Rand, centre, width int) float32 {
	if rng.IntN(10) == 0 {
		return 0
	}
	v := float32(math.Ldexp(1+float64(rng.IntN(128))/128, centre+rng.IntN(2*width+1)-width))
	if rng.IntN(2) == 0 {
		v = -v
	}
	return bf16(v)
}

// stepRanges are exponents of operands: ordinary, spread out, subnormal operands and results, and near overflow.
var stepRanges = []struct{ centre, width, acc int }{{0, 1, 0}, {0, 3, 2}, {0, 20, 5}, {-65, 10, -130}, {-70, 8, -146},
	{-100, 40, -140}, {62, 2, 126}, {-130, 4, -140}}

func TestStep16AgainstBigFloat(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	kinds := map[string]int{}
	for i := range 40_000 {
		r := stepRanges[i%len(stepRanges)]
		var x, y [steps]float32
		for k := range x {
			x[k], y[k] = spread(rng, r.centre, r.width), spread(rng, r.centre, r.width)
		}
		acc := float32(math.Ldexp(rng.Float64()*2-1, r.acc+rng.IntN(5)-2))
		if p := -float32(x[5] * y[5]); i%50 == 0 && finite(p) { // everything cancels
			x, y, acc = [steps]float32{5: x[5]}, [steps]float32{5: y[5]}, p
		}
		got, expected := Step16(acc, &x, &y), step16Big(acc, &x, &y)
		if math.Float32bits(got) != math.Float32bits(expected) {
			t.Fatalf("case %d: Step16(%v, %v, %v) = %b, want %b", i, acc, x, y, got, expected)
		}
		switch {
		case math.IsInf(float64(got), 0):
			kinds["infinite"]++
		case got == 0:
			kinds["zero"]++
		case math.Abs(float64(got)) < 0x1p-126:
			kinds["subnormal"]++
		}
	}
	if kinds["infinite"] < 100 || kinds["subnormal"] < 100 || kinds["zero"] < 20 {
		t.Errorf("too few edge cases: %v", kinds)
	}
}

func TestStep16NotFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct{ acc, x0, y0, x1, y1, want float32 }{
		{0, inf, 1, 0, 0, inf}, {0, inf, -1, 5, 5, -inf}, {0, inf, 0, 0, 0, nan}, {0, inf, 1, inf, -1, nan},
		{0, inf, 1, inf, 1, inf},
		{inf, 1, 1, 0, 0, inf}, {inf, -inf, 1, 0, 0, nan}, {nan, 1, 1, 0, 0, nan}, {1, nan, 0, 0, 0, nan},
		{-inf, 0, 0, 0, 0, -inf},
	} {
		x, y := [steps]float32{3: c.x0, 9: c.x1}, [steps]float32{3: c.y0, 9: c.y1}
		got := Step16(c.acc, &x, &y)
		if got != c.want && (got == got || c.want == c.want) || got != got && math.Float32bits(got) != 0x7fffffff {
			t.Errorf("%+v: got %v (%#x)", c, got, math.Float32bits(got))
		}
	}
}

// The fast kernels on wide exponents, subnormals, overflow on the way and operands that are not finite.
func TestSteps16OfKernels(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	var s Scratch
	for i := range 64 {
		r := stepRanges[i%len(stepRanges)]
		m, n, k := 1+rng.IntN(7), 1+rng.IntN(40), 1+rng.IntN(100)
		odd := i/len(stepRanges)%3 == 2
		value := func() float32 {
			if odd && rng.IntN(200) == 0 {
				return []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}[rng.IntN(3)]
			}
			return spread(rng, r.centre, r.width)
		}
		a, b := matrix(rng, m, k, value), matrix(rng, k, n, value)
		start := make([]float32, m*n)
		for i := range start {
			start[i] = float32(math.Ldexp(rng.Float64()*2-1, r.acc))
		}
		start[0] = float32(math.Copysign(0, -1))
		expected := want(kernels.DotTC16, start, m, n, k, a, b)
		for name, e := range engines(t, kernels.DotTC16) {
			got := append([]float32(nil), start...)
			e.Tile(&s, got, n, m, n, k, a, b)
			mustEqual(t, name, got, expected)
		}
	}
}

// A zero takes no part in a step, however large the other factor is: it must not shift the small products out.
func TestSteps16OfZeros(t *testing.T) {
	x, y, want := make([]float32, steps), make([]float32, steps), float32(0)
	for i := range x {
		x[i], y[i] = 0x1p-40, 0x1p-40
		switch i % 3 {
		case 1:
			x[i], y[i] = 0, 0x1p100
		case 2:
			x[i], y[i] = 0x1p100, 0
		default:
			want += 0x1p-80
		}
	}
	for name, e := range engines(t, kernels.DotTC16) {
		var s Scratch
		got := []float32{0}
		e.Tile(&s, got, 1, 1, 1, steps, View{X: x, RS: steps, CS: 1}, View{X: y, RS: 1, CS: 1})
		mustEqual(t, name, got, []float32{want})
	}
}
