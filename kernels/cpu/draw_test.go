package cpu

import (
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/quant"
)

// Numbers are those of [kernels.Draw.Values], by any number of threads and from any place on.
func TestDraw(t *testing.T) {
	for _, dev := range devices(t, kernels.Default()) {
		for _, kind := range []kernels.DrawKind{kernels.DrawConstant, kernels.DrawUniform, kernels.DrawNormal} {
			o := kernels.Draw{Kind: kind, Key: 1<<63 + 5, First: 3, Scale: 0.021}
			const n, from = 40000, 17001
			x, y := onHeap(kernels.F32, 1, 1, n), onHeap(kernels.BF16, 1, 1, n)
			part := onHeap(kernels.BF16, 1, 1, n-from)
			dev.Draw(x, o)
			dev.Draw(y, o)
			later := o
			later.First += from
			dev.Draw(part, later)
			want := make([]float32, n)
			o.Values(want, 0)
			for i, v := range want {
				if x.F32s()[i] != v || y.BF16s()[i] != kernels.RoundBF16(v) {
					t.Fatalf("%s, %s: element %d is %v and %v, want %v", dev.Name(), kind, i, x.F32s()[i],
						kernels.FromBF16(y.BF16s()[i]), v)
				}
			}
			if !slices.Equal(part.BF16s(), y.BF16s()[from:]) {
				t.Errorf("%s, %s: a part has other bits", dev.Name(), kind)
			}
		}
	}
}

// Codes are finite numbers of about the standard deviation that their scale is for, and those of a matrix are its own.
func TestDrawCodes(t *testing.T) {
	dev, rng := mustCPU(), rand.New(rand.NewPCG(1, 2))
	for _, e := range quant.Encodings {
		w := randomQuantized(rng, e.Format(), kernels.F32, 3, 40, 100)
		dev.DrawCodes(w, 9, 4, 0.25)
		one := randomQuantized(rng, e.Format(), kernels.F32, 1, 40, 100)
		dev.DrawCodes(one, 9, 5, 0.25)
		if !slices.Equal(w.Group(1).Codes.Raw(), one.Codes.Raw()) ||
			slices.Equal(w.Group(1).Codes.Raw(), w.Group(2).Codes.Raw()) {
			t.Errorf("%s: a matrix alone has other codes, or another has the same", e)
		}
		square, sum := 0.0, 0.0
		for _, x := range dequantized(dev, w).F32s() {
			square, sum = square+float64(x)*float64(x)/12000, sum+float64(x)/12000
		}
		sizes := map[quant.Code]float64{quant.CodeINT4: 4.18, quant.CodeE2M1: 2.93, quant.CodeE4M3: 1.17}
		want := sizes[w.Format.Code] * 0.25
		if square < want*want*0.9 || square > want*want*1.1 || sum > want/20 || sum < -want/20 {
			t.Errorf("%s: mean %v, mean square %v, want %v", e, sum, square, want*want)
		}
	}
}

func BenchmarkDraw(b *testing.B) {
	dev := mustCPU()
	x := onHeap(kernels.BF16, 1, 1, 1<<22)
	b.SetBytes(int64(x.Bytes()))
	for b.Loop() {
		dev.Draw(x, kernels.Draw{Kind: kernels.DrawNormal, Key: 1, Scale: 0.02})
	}
}
