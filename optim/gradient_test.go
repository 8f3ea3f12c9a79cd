package optim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// The losses once more, in float64 and straight from the papers, as functions of all log-probabilities lp. at holds
// those where gradients are stopped.

// reference64 is the loss of a step and how far its nearest bound is: a difference quotient must not step over one.
func reference64(name string, s Settings, rows Rows, lp, at []float64) (loss, nearest float64) {
	nearest = math.Inf(1)
	switch name {
	case "dpo":
		return pairs64(s, rows, lp), nearest
	case "sft", "custom":
		sign := map[string]float64{"sft": -1, "custom": 1}[name]
		for i, target := range rows.Targets {
			if target >= 0 {
				loss += sign * float64(rows.Weight[i]) * lp[i]
			}
		}
		return loss, nearest
	}
	for i, target := range rows.Targets {
		if target < 0 {
			continue
		}
		value, near := row64(name, s, rows, lp, at, i)
		loss += float64(rows.Weight[i]) * value
		nearest = min(nearest, near)
	}
	return loss, nearest
}

// row64 is the loss of row i before its weight.
func row64(name string, s Settings, rows Rows, lp, at []float64, i int) (loss, nearest float64) {
	old, a := rows.Old, float64(rows.Advantage[i])
	low, high := 1-s.ClipLow, 1+s.ClipHigh
	if s.ClipBounds == "absolute" {
		low, high = s.ClipLow, s.ClipHigh
	}
	w, nearest := weight64(s, rows, i)
	r := math.Exp(lp[i] - float64(old[i]))
	switch {
	case name == "gspo" && s.GSPOGradient == "mean":
		r = math.Exp(mean64(rows, i, func(j int) float64 { return lp[j] - float64(old[j]) }))
	case name == "gspo":
		r = math.Exp(mean64(rows, i, func(j int) float64 { return at[j] - float64(old[j]) }) + lp[i] - at[i])
	}
	switch name {
	case "policy_gradient":
		loss = -w * r * a
	case "cispo":
		stopped := math.Exp(at[i] - float64(old[i]))
		loss = -w * math.Max(low, math.Min(high, stopped)) * a * lp[i]
	case "dro":
		loss = -w * a * lp[i]
		if s.DROQuadratic == "all" || a != 0 {
			loss += s.DROBeta / 2 * (lp[i] - float64(old[i])) * (lp[i] - float64(old[i]))
		}
	default:
		loss = -math.Min(r*a, math.Max(low, math.Min(high, r))*a)
		if s.DualClip > 0 && a < 0 {
			loss = math.Min(loss, -s.DualClip*a)
			nearest = min(nearest, math.Abs(r-s.DualClip))
		}
		loss *= w
		nearest = min(nearest, math.Abs(r-low), math.Abs(r-high))
	}
	x := float64(rows.Reference[i]) - lp[i]
	kl := map[string]float64{"": 0, "k1": -x, "k2": x * x / 2, "k3": math.Exp(x) - x - 1}
	return loss + s.KLCoef*kl[s.KLEstimator], nearest
}

// weight64 is the importance weight of row i, and how far the nearest end of the band is, where it jumps.
func weight64(s Settings, rows Rows, i int) (w, nearest float64) {
	change := func(j int) float64 { return float64(rows.Old[j]) - float64(rows.Rollout[j]) }
	w, nearest = math.Exp(change(i)), math.Inf(1)
	if s.ImportanceLevel == "sequence" {
		w = math.Exp(mean64(rows, i, change))
	}
	if s.ImportanceCap == 0 && s.BandHigh == 0 {
		return 1, nearest
	}
	if s.BandHigh > 0 {
		nearest = min(math.Abs(w-s.BandLow), math.Abs(w-s.BandHigh))
		if w < s.BandLow || w > s.BandHigh {
			return 0, nearest
		}
	}
	if s.ImportanceCap > 0 {
		w = math.Min(w, s.ImportanceCap)
	}
	return w, nearest
}

// mean64 is the mean over the targets of row i's sequence.
func mean64(rows Rows, i int, v func(j int) float64) float64 {
	for s, from := range rows.Sequences {
		if to := rows.Sequences[s+1]; i < to {
			sum, n := 0.0, 0.0
			for j := from; j < to; j++ {
				if rows.Targets[j] >= 0 {
					sum, n = sum+v(j), n+1
				}
			}
			return sum / n
		}
	}
	panic("no such row")
}

func pairs64(s Settings, rows Rows, lp []float64) (loss float64) {
	for k := 0; k+2 < len(rows.Sequences); k += 2 {
		margin, weight := 0.0, 0.0
		for i := rows.Sequences[k]; i < rows.Sequences[k+2]; i++ {
			x := lp[i] - float64(rows.Reference[i])
			switch {
			case rows.Targets[i] < 0:
				continue
			case i < rows.Sequences[k+1]:
				margin += x
			default:
				margin -= x
			}
			weight = float64(rows.Weight[i])
		}
		logSigmoid := func(z float64) float64 { return -math.Log1p(math.Exp(-z)) }
		z := s.DPOBeta * margin
		value := -(1-s.LabelSmoothing)*logSigmoid(z) - s.LabelSmoothing*logSigmoid(-z)
		if s.DPOLoss == "ipo" {
			margin = 0
			for side, sign := range []float64{1, -1} {
				from, to, n, sum := rows.Sequences[k+side], rows.Sequences[k+side+1], 0.0, 0.0
				for i := from; i < to; i++ {
					if rows.Targets[i] >= 0 {
						n, sum = n+1, sum+lp[i]-float64(rows.Reference[i])
					}
				}
				margin += sign * sum / math.Max(1, n)
			}
		}
		if s.DPOLoss != "" && s.DPOLoss != "sigmoid" {
			value = (margin - 1/(2*s.DPOBeta)) * (margin - 1/(2*s.DPOBeta))
		}
		loss += weight * value
	}
	return loss
}

const quotientStep = 1e-6

// gradientError compares derivatives and the loss with the reference's; ok is false where a bound is too near for
// difference quotients.
func gradientError(o Objective, name string, s Settings, rows Rows) (ok bool, err error) {
	lp := make([]float64, len(rows.LogProb))
	for i, x := range rows.LogProb {
		lp[i] = float64(x)
	}
	want, nearest := reference64(name, s, rows, lp, lp)
	if nearest < 20*quotientStep {
		return false, nil
	}
	if m := measure(o, rows); math.Abs(m.Loss-want) > 2e-6*(1+math.Abs(want)) {
		return true, fmt.Errorf("loss %g, want %g", m.Loss, want)
	}
	moved := append([]float64(nil), lp...)
	for i, d := range derivative(o, rows) {
		moved[i] = lp[i] + quotientStep
		up, _ := reference64(name, s, rows, moved, lp)
		moved[i] = lp[i] - quotientStep
		down, _ := reference64(name, s, rows, moved, lp)
		moved[i] = lp[i]
		quotient := (up - down) / (2 * quotientStep)
		if math.Abs(float64(d)-quotient) > 1e-6*math.Abs(quotient)+1e-8 {
			return true, fmt.Errorf("row %d: derivative %g, difference quotient %g", i, d, quotient)
		}
	}
	return true, nil
}

// Derivatives are those of the losses in float64, by difference quotients.
func TestGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for _, c := range settings {
		s, err := Resolve(c.name, c.Settings)
		if err != nil {
			t.Fatal(err)
		}
		held := 0
		for range 40 {
			ok, err := gradientError(c.make(t), c.name, s, random(rng))
			if err != nil {
				t.Fatalf("%v: %v", c, err)
			}
			if ok {
				held++
			}
		}
		if held < 20 {
			t.Errorf("%v: only %d of 40 samples are far from every bound", c, held)
		}
	}
}

// Every setting that changes the loss is tested: an objective compared with the reference without one of its settings
// must fail.
func TestGradientsCanFail(t *testing.T) {
	for _, c := range settings {
		full, err := Resolve(c.name, c.Settings)
		if err != nil {
			t.Fatal(err)
		}
		less := c.Settings
		for i, k := range less.keys() {
			less = c.Settings
			less.keys()[i].copy((&Settings{}).keys()[i])
			s, err := Resolve(c.name, less)
			if err != nil || s == full {
				continue // one that another needs, or that is the default
			}
			rng, failed := rand.New(rand.NewPCG(17, 18)), false
			for n := 0; n < 40 && !failed; n++ {
				_, err := gradientError(c.make(t), c.name, s, random(rng))
				failed = err != nil
			}
			if !failed {
				t.Errorf("%v is not told from one without %s", c, k.name)
			}
		}
	}
}
