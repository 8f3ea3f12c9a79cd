package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/parallel"
)

func onRank(t *testing.T, body func(r *parallel.Rank)) {
	t.Helper()
	dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 2, ISA: cpu.Auto})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		body(r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		kind string
		step int
		want float64
	}{
		{"constant", 1, 0.5}, {"constant", 2, 1}, {"constant", 12, 1},
		{"linear", 2, 1}, {"linear", 7, 0.6}, {"linear", 12, 0.2},
		{"cosine", 2, 1}, {"cosine", 7, 0.6}, {"cosine", 12, 0.2}, {"cosine", 4, 0.2 + 0.8*(1+math.Cos(0.2*math.Pi))/2},
	} {
		s := Schedule{Kind: c.kind, Peak: 1, Final: 0.2, Warmup: 2, Steps: 12}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		if got := s.At(c.step); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s at step %d: %g, want %g", c.kind, c.step, got, c.want)
		}
	}
	for _, s := range []Schedule{
		{Kind: "square", Peak: 1, Steps: 1}, {Kind: "linear", Peak: -1, Steps: 1}, {Kind: "linear", Final: 2, Steps: 1},
		{Kind: "linear"}, {Kind: "cosine", Warmup: -1, Steps: 1},
	} {
		if s.Validate() == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}

// Warm-up is given as steps, or as a share of the run that is rounded up as in transformers.
func TestWarmupSteps(t *testing.T) {
	for _, c := range []struct {
		given       int
		ratio       float64
		steps, want int
	}{
		{0, 0, 10, 0}, {3, 0, 10, 3}, {0, 0.1, 10, 1}, {0, 0.1, 11, 2}, {0, 0.01, 10, 1}, {0, 0.07, 100, 7},
		{0, 0.1, 3, 1},
		{0, 1, 7, 7}, {0, 0.5, 0, 0},
	} {
		if got := WarmupSteps(c.given, c.ratio, c.steps); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// Adding up micro-batches gives the bits of the full batch, and ignored targets change nothing.
func TestSFT(t *testing.T) {
	rows := Rows{Targets: []int32{5, -1, 0, 7, -100}, LogProb: []float32{-1, -2, -3, -4, -0.125},
		Weight: []float32{0.25, 1, 0.25, 0.5, 1}}
	part := func(from, to int) Rows {
		return Rows{Targets: rows.Targets[from:to], LogProb: rows.LogProb[from:to], Weight: rows.Weight[from:to]}
	}
	var full, parts Measures
	SFT{}.Measure(&full, rows)
	SFT{}.Measure(&parts, part(0, 2))
	SFT{}.Measure(&parts, part(2, 5))
	if full != parts || full != (Measures{Loss: 3, Targets: 3}) {
		t.Errorf("sums %+v and %+v, want 3 of 3 targets", full, parts)
	}
	d := make([]float32, len(rows.Targets))
	SFT{}.Derivative(d, rows)
	if want := []float32{-0.25, 0, -0.25, -0.5, 0}; !slices.Equal(d, want) {
		t.Errorf("derivatives %v, want %v", d, want)
	}
}

// tensors makes one parameter's five tensors.
func tensors(r *parallel.Rank, w, grad []float32) Weights {
	up := func(v []float32) kernels.Tensor { return parallel.Upload(r, v) }
	zero := make([]float32, len(w))
	master := up(w)
	g := up(grad)
	return Weights{W: master, Grad: g, States: []State{{W: master, Master: master, M: up(zero), V: up(zero), Grad: g}}}
}

// Squares are in the order of the weights in all ranks, whoever owns which.
func TestSquares(t *testing.T) {
	var devices []kernels.Device
	for range 3 {
		dev, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1, ISA: cpu.Auto})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		devices = append(devices, dev)
	}
	for _, owners := range [][]int{{2, 0, 2, 1}, {0, 0, 1, 1}, {1, 1, 0, 0}} {
		err := parallel.Run(devices, func(r *parallel.Rank) error {
			var ws []Weights
			for i, owner := range owners {
				w := Weights{Owner: owner, W: r.Stack.New(kernels.BF16, 1, 2)}
				if owner == r.ID {
					w.Grad = parallel.Upload(r, []float32{float32(i + 1), 0})
				}
				ws = append(ws, w)
			}
			if got, want := squares(r, ws).F32s(), []float32{1, 4, 9, 16}; !slices.Equal(got, want) {
				t.Errorf("owners %v, rank %d: %v, want %v", owners, r.ID, got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Steps follow the formula of the paper in float64, clipping and several tensors included.
func TestAdamW(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a := AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Clip: 1}
	w, m, v := make([]float64, 7), make([]float64, 7), make([]float64, 7)
	for i := range w {
		w[i] = rng.NormFloat64()
	}
	onRank(t, func(r *parallel.Rank) {
		ws := []Weights{tensors(r, narrow(w[:3]), make([]float32, 3)), tensors(r, narrow(w[3:]), make([]float32, 4))}
		for step := 1; step <= 5; step++ {
			g := make([]float64, 7)
			sum := 0.0
			for i := range g {
				g[i] = rng.NormFloat64() * float64(step) / 3
				sum += g[i] * g[i]
			}
			write(r, ws[0].Grad, narrow(times(4, g[:3])))
			write(r, ws[1].Grad, narrow(times(4, g[3:])))
			norm := float64(parallel.Download[float32](r, stepAhead(t, a, r, ws, step))[0])
			if math.Abs(norm-math.Sqrt(sum)) > 1e-5 {
				t.Errorf("step %d: norm %g, want %g", step, norm, math.Sqrt(sum))
			}
			scale := math.Min(1, a.Clip/(math.Sqrt(sum)+1e-6))
			for i := range w {
				m[i] = a.Beta1*m[i] + (1-a.Beta1)*g[i]*scale
				v[i] = a.Beta2*v[i] + (1-a.Beta2)*g[i]*scale*g[i]*scale
				w[i] -= 0.01 * a.WeightDecay * w[i]
				w[i] -= 0.01 * (m[i] / (1 - math.Pow(a.Beta1, float64(step)))) /
					(math.Sqrt(v[i]/(1-math.Pow(a.Beta2, float64(step)))) + a.Eps)
			}
		}
		got := append(parallel.Download[float32](r, ws[0].W), parallel.Download[float32](r, ws[1].W)...)
		for i := range w {
			if math.Abs(float64(got[i])-w[i]) > 1e-5 {
				t.Errorf("weight %d: %g, want %g", i, got[i], w[i])
			}
		}
		for _, x := range parallel.Download[float32](r, ws[1].Grad) {
			if x != 0 {
				t.Error("the gradient was not cleared")
			}
		}
	})
}

// stepAhead takes a step, in odd ones with half of the weights, the first 3 of 7, ahead of the others.
func stepAhead(t *testing.T, a AdamW, r *parallel.Rank, ws []Weights, step int) (norm kernels.Tensor) {
	if step%2 == 0 {
		return a.Step(r, ws, 0.25, 0.01, step)
	}
	clip, was := r.Stack.New(kernels.F32, 1, 2), [2][]float32{}
	for i, w := range ws {
		was[i] = parallel.Download[float32](r, w.W)
	}
	u := a.Begin(r, ws, clip, 0.25, 0.01, step)
	for _, share := range []float64{0.4, 0.5, 0.9} {
		u.Ahead(r, ws, share)
		for i, w := range ws {
			updated := !slices.Equal(parallel.Download[float32](r, w.W), was[i])
			if want := i == 0 && share > 0.4; updated != want {
				t.Errorf("step %d, a share of %g: weights %d updated: %t, want %t", step, share, i, updated, want)
			}
		}
	}
	u.Apply(r, ws).Wait()
	return clip.ColRange(0, 1)
}

// A gradient that is not finite changes nothing.
func TestAdamWNotFinite(t *testing.T) {
	onRank(t, func(r *parallel.Rank) {
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), 3e38} {
			ws := []Weights{tensors(r, []float32{1, 2}, []float32{0.5, bad})}
			n := float64(parallel.Download[float32](r, AdamW{Beta1: 0.9, Beta2: 0.9, Eps: 1e-8, Clip: 1}.Step(r, ws, 1,
				1, 1))[0])
			if !math.IsNaN(n) && !math.IsInf(n, 0) {
				t.Errorf("gradient %g: norm %g", bad, n)
			}
			if got := parallel.Download[float32](r, ws[0].W); got[0] != 1 || got[1] != 2 {
				t.Errorf("gradient %g: weights %v", bad, got)
			}
		}
	})
}

// times is the numbers times a factor.
func times(factor float64, v []float64) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = factor * x
	}
	return out
}

func narrow(v []float64) []float32 {
	out := make([]float32, len(v))
	for i, x := range v {
		out[i] = float32(x)
	}
	return out
}

func write(r *parallel.Rank, t kernels.Tensor, v []float32) {
	r.Dev.Copy(t, parallel.Upload(r, v))
}
