package kernels

import (
	"math"
	"testing"
)

func TestSoftplusError(t *testing.T) {
	worst, ln := 0.0, 0.0
	for x := -80.0; x <= 80; x += 0.0137 {
		f := float32(x)
		want := math.Log1p(math.Exp(-math.Abs(float64(f)))) + max(float64(f), 0)
		worst = max(worst, math.Abs(float64(Exp2Poly.Softplus(f))/want-1))
	}
	for e := 0.0; e <= 1; e += 1.0 / (1 << 16) {
		if f := float32(e); f > 0 {
			ln = max(ln, math.Abs(float64(Ln1p(f))/math.Log1p(float64(f))-1))
		}
	}
	t.Logf("largest relative error of softplus %.3g, of Ln1p %.3g", worst, ln)
	if worst > 5e-6 || ln > 2e-7 { // the argument of 2^x carries |x|*2^-24
		t.Errorf("relative error of softplus %.3g, of Ln1p %.3g", worst, ln)
	}
}

func TestSoftplusEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, mode := range []Exp2Mode{Exp2Poly, Exp2Ex2h} {
		for _, c := range []struct{ got, want float32 }{
			{mode.Softplus(0), Ln1p(1)}, {mode.Softplus(200), 200}, {mode.Softplus(-200), 0}, {mode.Softplus(inf), inf},
			{mode.Softplus(-inf), 0},
			{mode.Exp(0), 1}, {mode.Exp(-inf), 0}, {mode.Exp(inf), inf}, {Ln1p(0), 0},
		} {
			if c.got != c.want {
				t.Errorf("%s: %v, want %v", mode, c.got, c.want)
			}
		}
		if nan := float32(math.NaN()); mode.Softplus(nan) == mode.Softplus(nan) || mode.Exp(nan) == mode.Exp(nan) {
			t.Errorf("%s: NaN does not stay", mode)
		}
	}
}

func TestExpError(t *testing.T) {
	worst := 0.0
	for x := -20.0; x <= 20; x += 0.0031 {
		worst = max(worst, math.Abs(float64(Exp2Poly.Exp(float32(x)))/math.Exp(float64(float32(x)))-1))
	}
	t.Logf("largest relative error %.3g", worst)
	if worst > 2e-6 {
		t.Errorf("relative error %.3g", worst)
	}
}
