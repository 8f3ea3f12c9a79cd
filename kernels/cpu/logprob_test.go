package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// inverses are those of temperatures of rows under test, 1 among them.
var inverses = []float32{1, 1 / float32(0.7), 1 / float32(1.3), 1 / float32(0.6), 0.01, 1, 1 / float32(0.9)}

// refLogProb is (m, s) and the log-probability of a row from the definition.
func refLogProb(exp2 func(float32) float32, logits []float32, inv float32, target int) (m, s, lp float32) {
	def := kernels.Default()
	x := make([]float32, len(logits))
	for i, v := range logits {
		x[i] = v * inv
	}
	for from := 0; from < len(x); from += def.VocabBlock {
		block := x[from:min(from+def.VocabBlock, len(x))]
		mb := block[0]
		for _, v := range block {
			mb = max(mb, v)
		}
		lanes := make([]float32, def.Lanes)
		for i, v := range block {
			lanes[i%def.Lanes] += exp2(float32((v - mb) * kernels.Log2E))
		}
		sb := refTree(def.Lanes, lanes)
		if from == 0 {
			m, s = mb, sb
			continue
		}
		to := max(m, mb)
		s = float32(s*exp2(float32((m-to)*kernels.Log2E))) + float32(sb*exp2(float32((mb-to)*kernels.Log2E)))
		m = to
	}
	if target < 0 {
		return m, s, 0
	}
	return m, s, (x[target] - m) - kernels.Ln(s)
}

var vocabularies = []int{1, 5, 512, 1024, 1025, 2500, 151_936}

func TestLogProbEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, vocab := range vocabularies {
		const rows = 7
		logits := attnTensor(kernels.F32, attnRandom(rng, kernels.F32, rows*vocab, 4), rows, vocab, 3)
		targets := make([]int32, rows)
		for i := range targets {
			targets[i] = int32(rng.IntN(vocab))
		}
		targets[2] = -1
		for _, dev := range append(attnDevices(t, plainKind), attnDevices(t, ex2hKind)...) {
			lp, stats := make([]float32, rows), make([]float32, rows*2)
			for _, inv := range []kernels.Tensor{{}, kernels.Wrap(inverses, 1, rows)} {
				dev.LogProb(kernels.Wrap(lp, 1, rows), kernels.Wrap(stats, rows, 2), logits, kernels.WrapI32(targets),
					inv)
				for r := range rows {
					f := inverses[r]
					if inv.IsNil() {
						f = 1
					}
					m, s, want := refLogProb(dev.def.Exp2.Func(), attnRow(logits, r), f, int(targets[r]))
					if !sameBits([]float32{lp[r], stats[2*r], stats[2*r+1]}, []float32{want, m, s}) {
						t.Fatalf("%s, vocabulary %d, row %d: %v, stats %v: want %v, %v %v", dev.Name(), vocab, r, lp[r],
							stats[2*r:2*r+2], want, m, s)
					}
					if exact := logProb64(attnRow(logits, r), f, int(targets[r])); math.Abs(float64(want)-exact) >
						3e-6*(1+math.Abs(exact)) {
						t.Errorf("vocabulary %d row %d: %v, in float64 %v", vocab, r, want, exact)
					}
				}
			}
		}
	}
}

// logProb64 is the log-probability at a temperature, in float64.
func logProb64(x []float32, inv float32, target int) float64 {
	if target < 0 {
		return 0
	}
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(float64(inv) * (float64(v) - float64(x[target])))
	}
	return -math.Log(sum)
}

func TestLogProbBackward(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for _, vocab := range vocabularies[:6] {
		const rows = 5
		x := attnRandom(rng, kernels.F32, rows*vocab, 3)
		for i := 3; i < len(x); i += 11 {
			x[i] -= 200 // a probability of 0: the sign of its gradient is part of the definition
		}
		targets, g := []int32{0, int32(vocab - 1), -1, int32(vocab / 2), int32(rng.IntN(vocab))},
			[]float32{1, -0.25, 3, 0, 1e-3}
		for _, dev := range append(attnDevices(t, plainKind), attnDevices(t, ex2hKind)...) {
			logits := attnTensor(kernels.F32, x, rows, vocab, 2)
			lp, stats := make([]float32, rows), make([]float32, rows*2)
			ids, st, dlp, inv := kernels.WrapI32(targets), kernels.Wrap(stats, rows, 2), kernels.Wrap(g, 1, rows),
				kernels.Wrap(inverses[:rows], 1, rows)
			dev.LogProb(kernels.Wrap(lp, 1, rows), st, logits, ids, inv)
			half := attnTensor(kernels.BF16, nil, rows, vocab, 1)
			dev.LogProbBackward(half, dlp, st, logits, ids, inv)
			dev.LogProbBackward(logits, dlp, st, logits, ids, inv) // in place
			for r := range rows {
				got, got16 := attnRow(logits, r), attnRow(half, r)
				for j := range vocab {
					hit := float32(0)
					if j == int(targets[r]) {
						hit = 1
					}
					z := float32(x[r*vocab+j] * inverses[r])
					want := float32(g[r]*inverses[r]) *
						(hit - float32(dev.def.Exp2.Func()(float32((z-stats[2*r])*kernels.Log2E))*(1/stats[2*r+1])))
					if targets[r] < 0 {
						want = 0
					}
					if !sameBits(got[j:j+1], []float32{want}) ||
						!sameBits(got16[j:j+1], []float32{attnRound(kernels.BF16, want)}) {
						t.Fatalf("%s, vocabulary %d row %d column %d: %v and %v, want %v", dev.Name(), vocab, r, j,
							got[j], got16[j], want)
					}
				}
				if targets[r] >= 0 {
					checkLogProbSlope(t, x[r*vocab:][:vocab], inverses[r], int(targets[r]), g[r], got)
				}
			}
		}
	}
}

// checkLogProbSlope compares a few columns of a gradient with finite differences in float64.
func checkLogProbSlope(t *testing.T, x []float32, inv float32, target int, g float32, got []float32) {
	t.Helper()
	const step = 1.0 / 256 // exact in fp32 for these logits, so a central difference errs by step^2
	for _, j := range []int{0, target, len(x) - 1} {
		y := append([]float32(nil), x...)
		y[j] = x[j] + step
		hi := float64(y[j])
		up := logProb64(y, inv, target)
		y[j] = x[j] - step
		want := float64(g) * (up - logProb64(y, inv, target)) / (hi - float64(y[j]))
		if math.Abs(want-float64(got[j])) > 1e-5*(1+math.Abs(float64(g))) {
			t.Fatalf("column %d of %d: %v, finite difference %v", j, len(x), got[j], want)
		}
	}
}

// A row has the same bits alone and among others.
func TestLogProbOfOneRow(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	const rows, vocab = 40, 5000
	logits := attnTensor(kernels.F32, attnRandom(rng, kernels.F32, rows*vocab, 3), rows, vocab, 0)
	targets := make([]int32, rows)
	inv := kernels.Wrap(slices.Repeat([]float32{1, 0.8}, rows/2), 1, rows)
	for _, dev := range attnDevices(t, plainKind) {
		run := func(from, to int) []float32 {
			lp, stats := make([]float32, to-from), make([]float32, 2*(to-from))
			dev.LogProb(kernels.Wrap(lp, 1, to-from), kernels.Wrap(stats, to-from, 2), logits.RowRange(from, to),
				kernels.WrapI32(targets[from:to]), inv.ColRange(from, to))
			return stats
		}
		all := run(0, rows)
		for r := range rows {
			if !sameBits(run(r, r+1), all[2*r:2*r+2]) {
				t.Fatalf("%s: row %d depends on the batch", dev.Name(), r)
			}
		}
	}
}
