package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// refAdjust changes a row by the definition in kernels.Device.
func refAdjust(exp2 func(float32) float32, x []float32, a kernels.Adjustment) {
	for _, l := range a.Logits {
		v := x[l.ID] + l.Bias
		if v > 0 {
			v = v / l.Repetition
		} else {
			v = v * l.Repetition
		}
		x[l.ID] = v - l.Penalty
	}
	if a.MinP == 0 || a.Temperature == 0 {
		return
	}
	inv := 1 / a.Temperature
	m := float32(math.Inf(-1))
	for _, v := range x {
		m = max(m, v*inv)
		if v != v || math.IsInf(float64(v), 1) {
			return
		}
	}
	if math.IsInf(float64(m), 0) {
		return
	}
	for j, v := range x {
		if exp2(float32((float32(v*inv)-m)*kernels.Log2E)) < a.MinP {
			x[j] = float32(math.Inf(-1))
		}
	}
}

// randomAdjustment changes up to half of the ids.
func randomAdjustment(rng *rand.Rand, vocab int) (a kernels.Adjustment) {
	for _, id := range rng.Perm(vocab)[:rng.IntN(vocab/2+1)] {
		a.Logits = append(a.Logits, kernels.LogitAdjustment{ID: int32(id), Bias: float32(rng.NormFloat64()),
			Repetition: []float32{1, 1.3, 0.7}[rng.IntN(3)], Penalty: float32(rng.IntN(3)) * 0.4})
	}
	a.MinP = []float32{0, 0, 0.05, 0.5, 1}[rng.IntN(5)]
	a.Temperature = []float32{0, 0.6, 1, 1.4, 1e-6}[rng.IntN(5)]
	return a
}

func TestAdjustLogits(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 42))
	for _, kind := range []attnKind{plainKind, ex2hKind} {
		devs := attnDevices(t, kind)
		for _, vocab := range []int{1, 2, 17, 1025, 3000} {
			const rows = 24
			x := attnRandom(rng, kernels.F32, rows*vocab, 2)
			x[rng.IntN(len(x))] = float32(math.Inf(-1))
			x[3*vocab], x[4*vocab] = float32(math.NaN()), float32(math.Inf(1))
			all := make([]kernels.Adjustment, rows)
			want := slices.Clone(x)
			cut := 0
			for r := range all {
				if r%5 > 0 { // others stay as they are
					all[r] = randomAdjustment(rng, vocab)
				}
				row := want[r*vocab:][:vocab]
				refAdjust(devs[0].def.Exp2.Func(), row, all[r])
				for _, v := range row {
					if math.IsInf(float64(v), -1) {
						cut++
					}
				}
			}
			if cut < rows && vocab > 2 {
				t.Errorf("only %d logits were cut", cut)
			}
			for _, dev := range devs {
				got := slices.Clone(x)
				dev.AdjustLogits(kernels.Wrap(got, rows, vocab), all)
				alone := slices.Clone(x)
				for r := range rows {
					dev.AdjustLogits(kernels.Wrap(alone[r*vocab:][:vocab], 1, vocab), all[r:r+1])
				}
				for i := range got {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) && got[i] == got[i] {
						t.Fatalf("%s: vocabulary %d, %+v: logit %d is %v, want %v", dev.Name(), vocab, all[i/vocab],
							i%vocab, got[i], want[i])
					}
					if math.Float32bits(got[i]) != math.Float32bits(alone[i]) {
						t.Fatalf("row %d alone has %v, in the batch %v", i/vocab, alone[i], got[i])
					}
				}
			}
		}
	}
}
