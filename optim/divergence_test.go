package optim

import (
	"math"
	"math/big"
	"testing"
)

func TestDivergence(t *testing.T) {
	rows := Rows{
		Targets: []int32{1, -1, 2, 3, 4},
		LogProb: []float32{-1, -9, -2, -0.5, -3},
		Rollout: []float32{-1, -5, -2.5, -0.25, -3},
	}
	var d Divergence
	d.Add(rows.Part(0, 3))
	d.Add(rows.Part(3, 5))
	k3 := (math.Exp(0.5) - 1.5 + math.Exp(-0.25) - 1 + 0.25) / 4
	if d.Tokens != 4 || d.Differ != 2 || d.Largest != 0.5 || d.Mean() != 0.1875 || d.Entropy() != 1.6875 ||
		d.K1() != -0.0625 || math.Abs(d.K3()-k3) > 1e-15 {
		t.Errorf("%+v: mean %g, k1 %g, k3 %g, want k3 %g", d, d.Mean(), d.K1(), d.K3(), k3)
	}
	if r := (1 + math.Exp(0.5) + math.Exp(-0.25) + 1) / 4; math.Abs(d.Ratio()-r) > 1e-6 ||
		math.Abs(d.LowRatio-math.Exp(-0.25)) > 1e-6 || math.Abs(d.HighRatio-math.Exp(0.5)) > 1e-6 {
		t.Errorf("ratios of mean %g in [%g, %g], want %g in [e^-0.25, e^0.5]", d.Ratio(), d.LowRatio, d.HighRatio, r)
	}
	var none Divergence
	if none.Mean() != 0 || none.Ratio() != 0 || none.Entropy() != 0 || none.K1() != 0 || none.K3() != 0 {
		t.Error("nothing added, and it is not 0")
	}
	rows.LogProb[0], rows.Rollout[0] = 1e4, -1e4
	d.Add(rows)
	if math.IsInf(d.K3(), 0) || math.IsNaN(d.K3()) || d.Largest != 2e4 || d.HighRatio > 5e8 {
		t.Errorf("far apart: %+v, k3 %g", d, d.K3())
	}
}

// Equal bits give exactly 0, and a difference of one bit does not.
func TestDivergenceBits(t *testing.T) {
	rows := Rows{Targets: []int32{1, 2}, LogProb: []float32{-0.7, -3e-7}, Rollout: []float32{-0.7, -3e-7}}
	var d Divergence
	d.Add(rows)
	if d != (Divergence{Tokens: 2, LowRatio: 1, HighRatio: 1, logprob: d.logprob, ratio: 2}) {
		t.Errorf("equal bits: %+v", d)
	}
	rows.LogProb, rows.Rollout = []float32{0, -1}, []float32{float32(math.Copysign(0, -1)), -1}
	d = Divergence{}
	if d.Add(rows); d.Differ != 1 {
		t.Errorf("+0 and -0: %+v, want 1 that differs", d)
	}
	rows.LogProb, rows.Rollout = []float32{-0.7, -3e-7}, []float32{-0.7, -3e-7}
	d = Divergence{}
	rows.Rollout[1] = math.Nextafter32(rows.Rollout[1], 0)
	d.Add(rows)
	if d.Differ != 1 || d.Largest == 0 || d.K3() <= 0 {
		t.Errorf("one bit: %+v, k3 %g", d, d.K3())
	}
}

// The series near 0 is e^x - 1 - x to fp64, against a sum of 60 terms in 300 bits.
func TestExcess(t *testing.T) {
	for _, x := range []float64{0, 1e-12, -1e-7, 3e-4, -0.01, 0.3, -0.5, 0.5} {
		sum, term := new(big.Float).SetPrec(300), new(big.Float).SetPrec(300).SetInt64(1)
		for k := 1; k < 60; k++ {
			term.Mul(term, big.NewFloat(x)).Quo(term, big.NewFloat(float64(k)))
			if k > 1 {
				sum.Add(sum, term)
			}
		}
		want, _ := sum.Float64()
		if got := excess(x); math.Abs(got-want) > 1e-15*want {
			t.Errorf("%g: %g, want %g", x, got, want)
		}
	}
	for _, x := range []float64{-20, -3, -0.51, 0.51, 4, 20} {
		if got, want := excess(x), math.Exp(x)-1-x; math.Abs(got-want) > 4e-6*want {
			t.Errorf("%g: %g, want %g", x, got, want)
		}
	}
}
