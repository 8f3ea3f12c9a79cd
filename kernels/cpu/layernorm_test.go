package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

func TestLayerNorm(t *testing.T) {
	rng := rand.New(rand.NewPCG(67, 68))
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for _, n := range []int{1, 16, 128, 700} {
			d := newRowDevice(t, Auto, 2)
			const rows = 9
			x, w, b := attnRandom(rng, dtype, rows*n, 3), attnRandom(rng, dtype, n, 1), attnRandom(rng, dtype, n, 1)
			out := attnTensor(dtype, nil, rows, n, 4)
			d.LayerNorm(out, attnTensor(dtype, x, rows, n, 2), attnTensor(dtype, w, 1, n, 0), attnTensor(dtype, b, 1, n,
				0), 1e-6)
			for r := range rows {
				v, want := x[r*n:][:n], make([]float32, n)
				c, square := make([]float32, n), make([]float32, n)
				mean := treeOf(v) / float32(n)
				for i := range c {
					c[i] = v[i] - mean
					square[i] = float32(c[i] * c[i])
				}
				rstd := 1 / float32(math.Sqrt(float64(treeOf(square)/float32(n)+1e-6)))
				for i := range want {
					want[i] = attnRound(dtype, float32(float32(c[i]*rstd)*w[i])+b[i])
				}
				if got := attnRow(out, r); !sameBits(got, want) {
					t.Fatalf("%v, %d columns, row %d: %v, want %v", dtype, n, r, got, want)
				}
			}
		}
	}
}

// The gradients equal the definition on every bit, in place too, and do not depend on how segments are put together.
func TestLayerNormBackward(t *testing.T) {
	rng := rand.New(rand.NewPCG(77, 78))
	const eps = 1e-6
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for _, n := range []int{1, 16, 128, 300} {
			d := newRowDevice(t, Auto, 2)
			const rows = 150
			segments := []int32{0, 70, rows}
			x, w, dy := attnRandom(rng, dtype, rows*n, 3), attnRandom(rng, dtype, n, 1), attnRandom(rng, dtype, rows*n,
				1)
			dx, sums, shifts := attnTensor(dtype, dy, rows, n, 4), attnRandom(rng, kernels.F32, n, 1),
				attnRandom(rng, kernels.F32, n, 1)
			wantW, wantB := append([]float32(nil), sums...), append([]float32(nil), shifts...)
			d.LayerNormBackward(dx, kernels.Wrap(sums, 1, n), kernels.Wrap(shifts, 1, n), dx, attnTensor(dtype, x, rows,
				n, 2), attnTensor(dtype, w, 1, n, 0), eps, segments)
			along := make([]float32, rows*n)
			for r := range rows {
				g, xh := make([]float32, n), make([]float32, n)
				rstd := standardised(xh, x[r*n:][:n], eps)
				slope := make([]float32, n)
				for i := range g {
					g[i] = float32(dy[r*n+i] * w[i])
					slope[i] = float32(g[i] * xh[i])
					along[r*n+i] = float32(dy[r*n+i] * xh[i])
				}
				a, b := treeOf(g)/float32(n), treeOf(slope)/float32(n)
				for i := range g {
					g[i] = attnRound(dtype, float32(rstd*((g[i]-a)-float32(xh[i]*b))))
				}
				if got := attnRow(dx, r); !sameBits(got, g) {
					t.Fatalf("%v, %d columns, row %d: %v, want %v", dtype, n, r, got, g)
				}
			}
			for i := range n {
				var sumW, sumB float32
				for _, block := range [][2]int{{0, 64}, {64, 70}, {70, 134}, {134, rows}} {
					if block[0] == 70 { // of the second segment
						wantW[i], wantB[i] = wantW[i]+sumW, wantB[i]+sumB
						sumW, sumB = 0, 0
					}
					var blockW, blockB float32
					for run := block[0]; run < block[1]; run += kernels.RowRun {
						var runW, runB float32
						for r := run; r < min(run+kernels.RowRun, block[1]); r++ {
							runW, runB = runW+along[r*n+i], runB+dy[r*n+i]
						}
						blockW, blockB = blockW+runW, blockB+runB
					}
					sumW, sumB = sumW+blockW, sumB+blockB
				}
				wantW[i], wantB[i] = wantW[i]+sumW, wantB[i]+sumB
			}
			if !sameBits(sums, wantW) || !sameBits(shifts, wantB) {
				t.Fatalf("%v, %d columns: dw %v, want %v; dbias %v, want %v", dtype, n, sums, wantW, shifts, wantB)
			}
		}
	}
}

// standardised is xh and rstd of a row.
func standardised(xh, x []float32, eps float32) float32 {
	n := float32(len(x))
	mean, square := treeOf(x)/n, make([]float32, len(x))
	for i, v := range x {
		xh[i] = v - mean
		square[i] = float32(xh[i] * xh[i])
	}
	rstd := 1 / float32(math.Sqrt(float64(treeOf(square)/n+eps)))
	for i := range xh {
		xh[i] = float32(xh[i] * rstd)
	}
	return rstd
}

// The gradients are those of the sum of dy*out, by finite differences in float64.
func TestLayerNormGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(79, 80))
	const rows, n, eps, step = 3, 11, 1e-6, 1e-6
	d := newRowDevice(t, Auto, 2)
	in := [3][]float32{attnRandom(rng, kernels.F32, rows*n, 2), attnRandom(rng, kernels.F32, n, 1), make([]float32, n)}
	dy := attnRandom(rng, kernels.F32, rows*n, 1)
	grads := [3][]float32{make([]float32, rows*n), make([]float32, n), make([]float32, n)}
	d.LayerNormBackward(kernels.Wrap(grads[0], rows, n), kernels.Wrap(grads[1], 1, n), kernels.Wrap(grads[2], 1, n),
		kernels.Wrap(dy, rows, n), kernels.Wrap(in[0], rows, n), kernels.Wrap(in[1], 1, n), eps, []int32{0, rows})
	var x [3][]float64
	for i, v := range in {
		for _, y := range v {
			x[i] = append(x[i], float64(y))
		}
	}
	loss := func() (sum float64) {
		for r := range rows {
			v, mean, square := x[0][r*n:][:n], 0.0, 0.0
			for _, y := range v {
				mean += y / n
			}
			for _, y := range v {
				square += (y - mean) * (y - mean) / n
			}
			for i, y := range v {
				sum += float64(dy[r*n+i]) * ((y-mean)/math.Sqrt(square+eps)*x[1][i] + x[2][i])
			}
		}
		return sum
	}
	for which := range x {
		for i, keep := range x[which] {
			x[which][i] = keep + step
			up := loss()
			x[which][i] = keep - step
			down := loss()
			x[which][i] = keep
			if got, want := float64(grads[which][i]), (up-down)/(2*step); math.Abs(got-want) > 1e-5*(1+math.Abs(want)) {
				t.Fatalf("input %d element %d: gradient %g, want %g", which, i, got, want)
			}
		}
	}
}
