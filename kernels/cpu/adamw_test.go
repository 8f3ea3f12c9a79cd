package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

var adamwSettings = kernels.AdamW{
	LR: 3e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Correction1: 0.19, Correction2: 0.0975,
}

// half is a factor of gradients.
func half() kernels.Tensor { return kernels.Wrap([]float32{0.5}, 1, 1) }

var adamwOps = []rowOp{
	{name: "AdamW", uncut: true, run: func(d *Device, c *rowCase) (_, other []kernels.Tensor) {
		n := c.n * c.cols() * 3
		w, master, m, v, grad := c.weight(1, n), c.f32(1, n), c.f32(1, n), c.f32(1, n), c.f32(1, n)
		for i, x := range v.F32s() {
			v.F32s()[i] = x * x
		}
		if w.DType == kernels.F32 {
			w = master
		}
		d.AdamW(w, master, m, v, grad, half(), adamwSettings)
		return nil, []kernels.Tensor{w, master, m, v, grad}
	}},
	{name: "SumSquares", uncut: true, run: func(d *Device, c *rowCase) (_, other []kernels.Tensor) {
		out := c.f32(1, 1)
		d.SumSquares(out, c.f32(c.n*7, c.cols()))
		return nil, []kernels.Tensor{out}
	}},
}

func TestSumSquaresIsTheDefinition(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 61}
	c.start()
	for _, n := range []int{0, 1, 4095, 4096, 4097, 50_000} {
		x, out := c.f32(1, n), c.f32(1, 1)
		var blocks []float32
		for from := 0; from < n; from += 4096 {
			var sq []float32
			for _, v := range x.F32s()[from:min(from+4096, n)] {
				sq = append(sq, v*v)
			}
			blocks = append(blocks, scalarTree(sq))
		}
		d.SumSquares(out, x)
		wantBits(t, "sum", out, []float32{scalarTree(blocks)})
	}
}

// Five steps against AdamW in float64, and against the definition bit by bit.
func TestAdamWSteps(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 62, dtype: kernels.BF16}
	c.start()
	const n = 1000
	w, master, m, v := c.weight(1, n), c.f32(1, n), rowTensor(kernels.F32, 1, n), rowTensor(kernels.F32, 1, n)
	w64, m64, v64 := to64(master), make([]float64, n), make([]float64, n)
	for step := 1; step <= 5; step++ {
		grad := c.f32(1, n)
		s := adamwSettings
		s.Correction1, s.Correction2 = float32(1-math.Pow(float64(s.Beta1), float64(step))),
			float32(1-math.Pow(float64(s.Beta2), float64(step)))
		want, g64 := make([]float32, n), to64(grad)
		for i := range want {
			g := grad.F32s()[i] * 0.5
			mi := float32(s.Beta1*m.F32s()[i]) + float32((1-s.Beta1)*g)
			vi := float32(s.Beta2*v.F32s()[i]) + float32(float32((1-s.Beta2)*g)*g)
			wi := master.F32s()[i] - float32(float32(s.LR*s.WeightDecay)*master.F32s()[i])
			root := float32(math.Sqrt(float64(vi / s.Correction2)))
			want[i] = wi - float32(s.LR*(float32(mi/s.Correction1)/(root+s.Eps)))

			g64[i] *= 0.5
			m64[i] = float64(s.Beta1)*m64[i] + (1-float64(s.Beta1))*g64[i]
			v64[i] = float64(s.Beta2)*v64[i] + (1-float64(s.Beta2))*g64[i]*g64[i]
			w64[i] -= float64(s.LR) * float64(s.WeightDecay) * w64[i]
			w64[i] -= float64(s.LR) * (m64[i] / float64(s.Correction1)) / (math.Sqrt(v64[i]/float64(s.Correction2)) +
				float64(s.Eps))
		}
		d.AdamW(w, master, m, v, grad, half(), s)
		wantBits(t, "master", master, want)
		for i, x := range want {
			if got := w.BF16s()[i]; got != kernels.RoundBF16(x) {
				t.Fatalf("step %d: weight %d is %#x of %v", step, i, got, x)
			}
			if math.Abs(float64(x)-w64[i]) > 2e-6*max(1, math.Abs(w64[i])) {
				t.Fatalf("step %d: weight %d is %v, in float64 %v", step, i, x, w64[i])
			}
			if grad.F32s()[i] != 0 {
				t.Fatalf("step %d: gradient %d is not cleared", step, i)
			}
		}
	}
}

func TestClipScale(t *testing.T) {
	d := newRowDevice(t, Auto, 1)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		sums         []float32
		scale, clip  float64
		norm, factor float32
	}{
		{[]float32{9, 16}, 1, 0, 5, 1}, {[]float32{9, 16}, 1, 10, 5, 1},
		{[]float32{9, 16}, 1, 1, 5, float32(1 / (5 + 1e-6))},
		{[]float32{9, 16}, 0.1, 1, 0.5, 0.1}, {[]float32{9, 16}, 3, 12, 15, float32(3 * 12 / (15 + 1e-6))},
		{nil, 1, 1, 0, 1},
		{[]float32{3e38, 3e38}, 1, 1, float32(math.Sqrt(float64(float32(3e38)) * 2)),
			float32(1 / (math.Sqrt(float64(float32(3e38))*2) + 1e-6))},
		{[]float32{1, inf}, 1, 1, inf, nan}, {[]float32{nan, 1}, 1, 0, nan, nan},
	} {
		out := rowTensor(kernels.F32, 1, 2)
		d.ClipScale(out, kernels.Wrap(c.sums, 1, len(c.sums)), c.scale, c.clip)
		for i, want := range []float32{c.norm, c.factor} {
			if got := out.F32s()[i]; got != want && (got == got || want == want) {
				t.Errorf("%v times %v clipped to %v: element %d is %v, want %v", c.sums, c.scale, c.clip, i, got, want)
			}
		}
	}
	w := kernels.Wrap([]float32{1, 2}, 1, 2)
	m, v, g := rowTensor(kernels.F32, 1, 2), rowTensor(kernels.F32, 1, 2), kernels.Wrap([]float32{3, 4}, 1, 2)
	d.AdamW(w, w, m, v, g, kernels.Wrap([]float32{nan}, 1, 1), adamwSettings)
	wantBits(t, "weights", w, []float32{1, 2})
	wantBits(t, "gradient", g, []float32{3, 4})
}
