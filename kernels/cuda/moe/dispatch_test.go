//go:build cuda

package moe

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// dispatch is the operands of one, and what runs it.
func dispatch(tokens, e, k int, expertIDs, segments []int32) ([]cudatest.Operand,
	func(d kernels.Device, x []kernels.Tensor)) {
	n := len(segments) - 1
	x := []cudatest.Operand{cudatest.Ints(tokens, k, expertIDs), cudatest.Ints(1, e*n+1, make([]int32, e*n+1)),
		cudatest.Ints(1, tokens*k, make([]int32, tokens*k)), cudatest.Ints(tokens, k, make([]int32, tokens*k))}
	return x, func(d kernels.Device, x []kernels.Tensor) {
		g := kernels.Groups{Offsets: x[1], Count: e, Segments: n}
		d.Dispatch(kernels.Plan{Groups: g, Source: x[2], RowOf: x[3]}, x[0], segments)
	}
}

// someSegments is so many segments of rows, some empty.
func someSegments(tokens, n int) []int32 {
	segments := append(cudatest.Below(n-1, tokens+1), 0, int32(tokens))
	slices.Sort(segments)
	return segments
}

// Few pairs are one kernel, more are three; both give the same plan.
func TestDispatch(t *testing.T) {
	for _, s := range []struct {
		tokens, e, k, segments int
		few                    bool
	}{
		{1, 128, 8, 1, true}, {1, 512, 10, 1, true}, {1, 1, 1, 1, true}, {3, 5, 2, 4, true}, {118, 128, 8, 1, true},
		{128, 128, 8, 1, true}, {118, 128, 8, 5, true},
		{1000, 128, 1, 1, true}, {1000, 512, 10, 1, false}, {1000, 384, 8, 1, true}, {1000, 129, 8, 12, false},
		{1024, 128, 8, 1, true}, {1025, 128, 8, 1, false}, {819, 512, 10, 1, true},
		{600, 64, 6, 12, true}, {40, 32, 4, 32, true}, {40, 32, 4, 33, false}, {100, 12000, 8, 1, false},
		{100, 2500, 8, 1, true}, {5000, 100, 10, 7, false},
	} {
		segments, launches := someSegments(s.tokens, s.segments), cudatest.GPU.Counts().Launches
		for _, expertIDs := range [][]int32{randomExperts(s.tokens, s.e, s.k), make([]int32, s.tokens*s.k),
			slices.Repeat([]int32{int32(s.e - 1)}, s.tokens*s.k)} {
			x, run := dispatch(s.tokens, s.e, s.k, expertIDs, segments)
			cudatest.Both(t, fmt.Sprintf("dispatch of %+v", s), x, run)
		}
		if s.few != (cudatest.GPU.Counts().Launches == launches+3) {
			t.Errorf("dispatch of %+v in segments %v: few runs, or not", s, segments)
		}
	}
}

// Segments at the end may be empty: each expert's rows end there, not the batch's.
func TestDispatchEmptySegments(t *testing.T) {
	for _, tokens := range []int{1, 100, 1000} {
		expertIDs := randomExperts(tokens, 512, 10)
		x, run := dispatch(tokens, 512, 10, expertIDs, []int32{0, int32(tokens), int32(tokens), int32(tokens)})
		cudatest.Both(t, fmt.Sprintf("dispatch of %d tokens and two empty segments", tokens), x, run)
	}
}

// The comparison fails where one token chose otherwise.
func TestDispatchDiffers(t *testing.T) {
	expertIDs := randomExperts(118, 128, 8)
	x, run := dispatch(118, 128, 8, expertIDs, []int32{0, 118})
	n, _ := cudatest.Differences(t, x, run, func(d kernels.Device, x []kernels.Tensor) {
		other := slices.Clone(expertIDs)
		other[rand.IntN(len(other))] ^= 1
		d.Write(x[0], cudatest.Ints(118, 8, other).Raw)
		run(d, x)
		d.Write(x[0], cudatest.Ints(118, 8, expertIDs).Raw)
	})
	if n == 0 {
		t.Error("another choice is not noticed")
	}
}
