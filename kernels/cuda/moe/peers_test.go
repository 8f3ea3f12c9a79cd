//go:build cuda

package moe_test

import (
	"bytes"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
)

// Rows of both cards come below one another, and are combined, as the CPU has them.
func TestPeers(t *testing.T) {
	a, b := cudatest.Pair[*cuda.Device](t)
	const tokens, k = 37, 3
	rowOf := make([]int32, tokens*k)
	for i, row := range cudatest.Rand.Perm(tokens * k) {
		rowOf[i] = int32(row)
	}
	for _, cols := range []int{1, 8, 20, 2056} {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			rows := []cudatest.Operand{cudatest.Normal(dtype, tokens*k, cols, 1),
				cudatest.Normal(dtype, tokens*k, cols, 1)}
			weights := cudatest.Normal(kernels.F32, tokens, k, 1)
			// what the devices at hand make of it, where the parts lie on the first and on the second
			run := func(first, second kernels.Device) (all []byte) {
				var parts []kernels.Tensor
				for i, d := range []kernels.Device{first, second, first} {
					p, _ := rows[i%2].On(d)
					parts = append(parts, p)
				}
				w, _ := weights.On(first)
				at, _ := cudatest.Ints(tokens, k, rowOf).On(first)
				offsets, _ := cudatest.Ints(1, 5, []int32{0, 9, 50, 90, tokens * k}).On(first)
				ids, _ := cudatest.Ints(tokens, k, rowOf).On(second)
				blank := func(d kernels.DType, rows, cols int) kernels.Tensor {
					t, _ := cudatest.Normal(d, rows, cols, 1).On(first)
					return t
				}
				below, sums := blank(dtype, 3*tokens*k, cols), blank(dtype, tokens, cols)
				plain, taken := blank(dtype, tokens, cols), blank(dtype, tokens*k, cols)
				added, residual := blank(dtype, tokens, cols), plain
				both, _ := cudatest.Ints(2*tokens, k, slices.Concat(rowOf, rowOf)).On(first)
				on := first.(kernels.Transfers)
				on.WaitEvents(second.(kernels.Transfers).Record())
				on.GatherPeers(below, parts)
				on.GatherPeers(both, []kernels.Tensor{ids, at})
				three := kernels.PeerRows{Parts: parts, Base: []int{0, 0, 0}, Offsets: offsets, First: []int{0, 2, 3}}
				on.CombinePeers(sums, kernels.Tensor{}, three, w, at)
				cut := []kernels.Tensor{parts[0].RowRange(0, 9), parts[1].RowRange(0, tokens*k-9)}
				two := kernels.PeerRows{Parts: cut, Base: []int{0, 9}, Offsets: offsets, First: []int{0, 1}}
				on.CombinePeers(plain, kernels.Tensor{}, two, kernels.Tensor{}, at)
				on.CombinePeers(added, residual, two, w, at)
				on.TakePeers(taken, two, at.Reshape(1, tokens*k))
				for _, t := range []kernels.Tensor{below, both, sums, plain, added, taken} {
					raw := make([]byte, t.Bytes())
					first.Read(raw, t)
					all = append(all, raw...)
				}
				return all
			}
			want := run(cudatest.Reference, cudatest.Reference)
			if !bytes.Equal(run(a, b), want) || !bytes.Equal(run(b, a), want) {
				t.Errorf("%d columns of %s differ", cols, dtype)
			}
		}
	}
}
