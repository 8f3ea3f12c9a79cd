package cpu

import (
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// joinCase is random tensors of JoinHeads and its gradient: strided, full of NaN where something is written.
func joinCase(rng *rand.Rand, dtype kernels.DType, rows, heads, n, r int) (out, own, shared, dOwn, dshared,
	dout kernels.Tensor) {
	random := func(cols, gap int) kernels.Tensor {
		return attnTensor(dtype, attnRandom(rng, dtype, rows*cols, 1), rows, cols, gap)
	}
	empty := func(cols, gap int) kernels.Tensor { return attnTensor(dtype, nil, rows, cols, gap) }
	return empty(heads*(n+r), 3), random(heads*n, 1), random(r, 5), empty(heads*n, 2), empty(r, 7),
		random(heads*(n+r), 0)
}

func TestJoinHeads(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for i, s := range [][4]int{{1, 1, 1, 1}, {7, 4, 16, 8}, {300, 3, 5, 2}} {
			rows, heads, n, r := s[0], s[1], s[2], s[3]
			d := newRowDevice(t, []ISA{Auto, Portable}[i%2], 1+i%2)
			out, own, shared, dOwn, dshared, dout := joinCase(rng, dtype, rows, heads, n, r)
			d.JoinHeads(out, own, shared)
			d.JoinHeadsBackward(dOwn, dshared, dout)
			for row := range rows {
				got, x, c := attnRow(out, row), attnRow(own, row), attnRow(shared, row)
				dx, dc, dy := attnRow(dOwn, row), attnRow(dshared, row), attnRow(dout, row)
				sum := make([]float32, r)
				for h := range heads {
					head := append(append([]float32{}, x[h*n:][:n]...), c...)
					if !sameBits(got[h*(n+r):][:n+r], head) || !sameBits(dx[h*n:][:n], dy[h*(n+r):][:n]) {
						t.Fatalf("%v %v: row %d head %d differs", dtype, s, row, h)
					}
					for j := range sum {
						sum[j] += dy[h*(n+r)+n+j]
					}
				}
				for j := range sum {
					sum[j] = attnRound(dtype, sum[j])
				}
				if !sameBits(dc, sum) {
					t.Fatalf("%v %v: row %d: gradient of the shared columns is %v, want %v", dtype, s, row, dc, sum)
				}
			}
		}
	}
}
