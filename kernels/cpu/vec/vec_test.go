package vec

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

func TestLanesAreTheDefinitions(t *testing.T) {
	if d := kernels.Default(); d.Lanes != lanes {
		t.Errorf("the definition has %d lanes, this package %d", d.Lanes, lanes)
	}
}

// Tree is the definition's sum, written here as it is stated: lanes in a padded table, then halving by index.
func TestTreeOrder(t *testing.T) {
	o, rng := New("portable", kernels.Exp2Poly), rand.New(rand.NewPCG(1, 2))
	differs := 0
	for n := range 1200 {
		x, ones := numbers(rng, n, false), make([]float32, n)
		sum := make([]float32, 256)
		plain := float32(0)
		for i, v := range x {
			sum[i%256] = sum[i%256] + v
			plain += v
			ones[i] = 1
		}
		for half := 128; half >= 1; half /= 2 {
			next := make([]float32, half)
			for l := range next {
				next[l] = sum[l] + sum[l+half]
			}
			sum = next
		}
		if got := o.Tree(x); !same(got, sum[0]) {
			t.Fatalf("n %d: %v, want %v", n, got, sum[0])
		}
		if got := o.TreeDot(x, ones); !same(got, sum[0]) {
			t.Fatalf("n %d: with ones %v, want %v", n, got, sum[0])
		}
		if plain != sum[0] {
			differs++
		}
	}
	if differs < 900 {
		t.Errorf("an ascending sum has other bits in only %d of 1200 rows: the numbers do not tell orders apart",
			differs)
	}
}

// The sum of a row of zeros is +0, whatever their signs, at every length: padding with +0 is a no-op.
func TestTreeOfNegativeZeros(t *testing.T) {
	negative := float32(math.Copysign(0, -1))
	for set := range sets {
		if set != "portable" && !slices.Contains(machineSets(), set) {
			continue
		}
		for n := range 300 {
			x := make([]float32, n)
			for i := range x {
				x[i] = negative
			}
			if got := New(set, kernels.Exp2Poly).Tree(x); math.Float32bits(got) != 0 {
				t.Fatalf("%s: %d times -0 is %v", set, n, got)
			}
		}
	}
}

func TestExp2SubIsExp2(t *testing.T) {
	o := New("portable", kernels.Exp2Poly)
	x := []float32{3, 2.5, -7, 4, 1e30, float32(math.Inf(-1))}
	got := make([]float32, len(x))
	o.Exp2Sub(got, x, 1, 3)
	for i, v := range x {
		want := kernels.Exp2(min(v-3, 0))
		if got[i] != want {
			t.Errorf("base 2: %v gives %v, want %v", v, got[i], want)
		}
	}
	o.Exp2Sub(got, x, kernels.Log2E, 3)
	for i, v := range x {
		if want := math.Exp(min(float64(v)-3, 0)); math.Abs(float64(got[i])-want) > 2e-6*want {
			t.Errorf("base e: %v gives %v, want %v", v, got[i], want)
		}
	}
}

func TestSigmoid(t *testing.T) {
	for x := float32(-80); x <= 80; x += 0.37 {
		want := 1 / (1 + math.Exp(-float64(x)))
		if got := float64(sigmoid(kernels.Exp2, x)); math.Abs(got-want) > 8e-6*want {
			t.Errorf("sigmoid(%v) = %v, want %v", x, got, want)
		}
	}
	inf := float32(math.Inf(1))
	if sigmoid(kernels.Exp2, inf) != 1 || sigmoid(kernels.Exp2, -inf) != 0 || sigmoid(kernels.Exp2, 0) != 0.5 {
		t.Errorf("sigmoid at infinities and 0: %v %v %v", sigmoid(kernels.Exp2, inf), sigmoid(kernels.Exp2, -inf),
			sigmoid(kernels.Exp2, 0))
	}
}

func TestMaxEdges(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, set := range append(machineSets(), "portable") {
		o := New(set, kernels.Exp2Poly)
		if got := o.Max(nil); got != -inf {
			t.Errorf("%s: Max of nothing is %v", set, got)
		}
		if got := o.Max([]float32{float32(math.Copysign(0, -1)), -1}); math.Float32bits(got) != 0 {
			t.Errorf("%s: Max of -0 and -1 is %#x", set, math.Float32bits(got))
		}
		for at := range 70 {
			x := make([]float32, 70)
			x[at] = nan
			if got := o.Max(x); got == got {
				t.Errorf("%s: Max with NaN at %d is %v", set, at, got)
			}
			x[at] = 5
			if got := o.Max(x); got != 5 {
				t.Errorf("%s: Max with 5 at %d is %v", set, at, got)
			}
		}
	}
}

func TestNewRefusesUnknownSets(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an unknown instruction set gives loops")
		}
	}()
	New("sse9", kernels.Exp2Poly)
}
