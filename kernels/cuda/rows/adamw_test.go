//go:build cuda

package rows

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

func TestSumSquares(t *testing.T) {
	// groups, elements of each, and where they begin; the last has lanes wait for memory twice
	for _, s := range [][3]int{{1, 1, 0}, {1, 1000, 1}, {1, 4096, 0}, {1, 4096, 2}, {1, 100003, 0}, {1, 100003, 1},
		{1, 100003, 4}, {3, 1, 0}, {5, 4096, 0}, {3, 4099, 1}, {7, 9000, 4}, {300, 40, 3}, {1, 1<<25 + 1<<20, 0}} {
		groups, n, from := s[0], s[1], s[2]
		matrices := func(t kernels.Tensor, first, count int) kernels.Tensor {
			t = t.ColRange(from+first*n, from+(first+count)*n)
			t.Groups, t.Cols, t.Stride = count, n, n
			return t
		}
		x := []cudatest.Operand{cudatest.Normal(kernels.F32, 1, groups, 1),
			cudatest.Normal(kernels.F32, 1, from+groups*n, 1)}
		joint := func(d kernels.Device, x []kernels.Tensor) { d.SumSquares(x[0], matrices(x[1], 0, groups)) }
		cudatest.Both(t, fmt.Sprintf("sums of squares of %d x %d from %d", groups, n, from), x, joint)
		if groups*n > 1<<20 {
			continue
		}
		if n, at := cudatest.Differences(t, x, joint, func(d kernels.Device, x []kernels.Tensor) {
			for e := range groups {
				d.SumSquares(x[0].ColRange(e, e+1), matrices(x[1], e, 1))
			}
		}); n > 0 {
			t.Errorf("sums of squares of %v, one by one: %d bytes differ, first %s", s, n, at)
		}
	}
}

// More tensors than a launch has, of some groups each, are as those one by one.
func TestSumSquaresOfMany(t *testing.T) {
	const most = adamwMostTensors + 3
	x := []cudatest.Operand{cudatest.Normal(kernels.F32, 1, 3*most, 1), cudatest.Normal(kernels.F32, 1, 3*most*5000, 1)}
	var list []kernels.Squares
	each := func(x []kernels.Tensor) []kernels.Squares {
		list = list[:0]
		out, at := 0, 0
		for i := range most {
			groups, n := 1+i%3, []int{1, 33, 4096, 4999}[i%4]
			t := x[1].ColRange(at, at+groups*n)
			t.Groups, t.Cols, t.Stride = groups, n, n
			list = append(list, kernels.Squares{Out: x[0].ColRange(out, out+groups), T: t})
			out, at = out+groups, at+groups*n
		}
		return list
	}
	joint := func(d kernels.Device, x []kernels.Tensor) {
		all := each(x)
		d.SumSquares(all[0].Out, all[0].T, all[1:]...)
	}
	cudatest.Both(t, "sums of squares of many", x, joint)
	if n, at := cudatest.Differences(t, x, joint, func(d kernels.Device, x []kernels.Tensor) {
		for _, of := range each(x) {
			d.SumSquares(of.Out, of.T)
		}
	}); n > 0 {
		t.Errorf("one by one %d bytes differ, first %s", n, at)
	}
}

func TestClipScale(t *testing.T) {
	for _, n := range []int{1, 50, 1024, 1025, 5000} {
		for _, scale := range []float64{1, 0.3, 1.0 / 4093} {
			for _, clip := range []float64{0, 1e-3, 1, 1e6} {
				cudatest.Both(t, fmt.Sprintf("clip of %d sums times %v to %v", n, scale, clip),
					[]cudatest.Operand{cudatest.Positive(1, 2), cudatest.Positive(1, n)},
					func(d kernels.Device, x []kernels.Tensor) { d.ClipScale(x[0], x[1], scale, clip) })
			}
		}
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		out, _ := cudatest.Positive(1, 2).On(cudatest.Card)
		sums, _ := cudatest.Operand{DType: kernels.F32, Groups: 1, Rows: 1, Cols: 1, Stride: 1,
			Raw: binary.LittleEndian.AppendUint32(nil, math.Float32bits(bad))}.On(cudatest.Card)
		cudatest.Card.ClipScale(out, sums, 0.5, 1)
		raw := make([]byte, 8)
		cudatest.Card.Read(raw, out)
		if factor := math.Float32frombits(binary.LittleEndian.Uint32(raw[4:])); factor == factor {
			t.Errorf("the factor of a norm of %v is %v, not NaN", bad, factor)
		}
	}
}

// sparse makes every other run of 50 elements of an F32 cudatest.Operand zeros, of either sign.
func sparse(o cudatest.Operand) cudatest.Operand {
	for i := range len(o.Raw) / 4 {
		if i/50%2 == 1 {
			binary.LittleEndian.PutUint32(o.Raw[4*i:], uint32(i%3/2)<<31)
		}
	}
	return o
}

func TestAdamW(t *testing.T) {
	f32 := func(n int) cudatest.Operand { return sparse(cudatest.Normal(kernels.F32, 1, n, 1)) }
	step := kernels.AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Correction1: 0.1,
		Correction2: 0.05}
	for _, dtype := range cudatest.DTypes {
		for _, n := range []int{1, 1000, 4096, 100003} {
			// where w, master, m, v, grad begin
			for _, from := range [][5]int{{}, {1, 1, 1, 1, 1}, {2, 0, 0, 0, 0}, {0, 0, 0, 2, 0}, {4, 4, 8, 12, 16}} {
				x := []cudatest.Operand{cudatest.Normal(dtype, 1, n+16, 1), f32(n + 16), f32(n + 16),
					sparse(cudatest.Positive(1, n+16)),
					f32(n + 16), cudatest.Positive(1, 2), cudatest.Positive(1, 50)}
				cudatest.Both(t, fmt.Sprint("adamw of ", n, " from ", from), x,
					func(d kernels.Device, x []kernels.Tensor) {
						part := func(i int) kernels.Tensor { return x[i].ColRange(from[i], from[i]+n) }
						factor := x[5].ColRange(1, 2)
						d.ClipScale(x[5], x[6], 1, 0.3)
						d.AdamW(part(0), part(1), part(2), part(3), part(4), factor, step)
						if dtype == kernels.F32 {
							// the weights are their own masters
							d.AdamW(part(1), part(1), part(2), part(3), part(4), factor, step)
						}
					})
			}
		}
	}
	// more tensors than a launch has, and one that has one of its own
	many := []cudatest.Operand{cudatest.Normal(kernels.BF16, 1, alone+50000, 1), f32(alone + 50000),
		f32(alone + 50000), sparse(cudatest.Positive(1, alone+50000)), f32(alone + 50000), cudatest.Positive(1, 1)}
	cudatest.Both(t, "adamw of many", many, func(d kernels.Device, x []kernels.Tensor) {
		var list []kernels.Moments
		at := 0
		for i := range adamwMostTensors + 3 {
			n := []int{1, 500, 1024, 3000}[i%4]
			if i == 20 {
				n = alone
			}
			part := func(k int) kernels.Tensor { return x[k].ColRange(at, at+n) }
			of := kernels.Moments{W: part(0), Master: part(1), M: part(2), V: part(3), Grad: part(4)}
			if i%5 == 0 { // of another type, by itself
				of.W = of.Master
			}
			list, at = append(list, of), at+n
		}
		first := list[0]
		d.AdamW(first.W, first.Master, first.M, first.V, first.Grad, x[5], step, list[1:]...)
	})
	nan := cudatest.Operand{DType: kernels.F32, Groups: 1, Rows: 1, Cols: 1, Stride: 1,
		Raw: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN())))}
	cudatest.Both(t, "adamw by NaN", []cudatest.Operand{f32(5000), f32(5000), sparse(cudatest.Positive(1, 5000)),
		f32(5000), nan},
		func(d kernels.Device, x []kernels.Tensor) {
			d.AdamW(x[0], x[0], x[1], x[2], x[3], x[4], step)
		})
}
