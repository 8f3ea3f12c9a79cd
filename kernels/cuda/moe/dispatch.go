//go:build cuda

package moe

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Dispatch fills the plan from experts int32 [T, K]; segments are row offsets [0 ... T] of the layout.
func (d *Ops) Dispatch(p kernels.Plan, experts kernels.Tensor, segments []int32) {
	g, k := p.Groups, experts.Cols
	if few, n := cutFew(g.Count, k, segments); n > 0 {
		launchDispatchFew(d.Context, [3]int{1, 1, 1}, dispatchScan, 4*g.Count*n, few, g.Offsets, p.Source, p.RowOf,
			experts, g.Count, n, g.Segments, k)
		return
	}
	cuts, first := cutPairs(segments, k, dispatchRun)
	n := len(cuts) - 1
	counts, staged := d.Scratch(4*g.Count*n+4), driver.Stage(d.Context, append(cuts, first...))
	grid, shared := [3]int{n, 1, 1}, 4*g.Count
	launchDispatchCount(d.Context, grid, 32, shared, counts, experts, staged, g.Count)
	launchDispatchScan(d.Context, [3]int{1, 1, 1}, dispatchScan, 0, g.Offsets, counts, staged.From(len(cuts)), g.Count,
		n, g.Segments, experts.Len())
	launchDispatchDeal(d.Context, grid, 32, shared, p.Source, p.RowOf, counts, experts, staged, g.Count, k)
}

// cutPairs cuts the pairs of segments into runs of at most `most`, none across segments: run i is pairs cuts[i] up to
// cuts[i+1], and first is the first run of each segment.
func cutPairs(segments []int32, k, most int) (cuts, first []int32) {
	for i, from := range segments[:len(segments)-1] {
		first = append(first, int32(len(cuts)))
		for at := from * int32(k); at < segments[i+1]*int32(k); at += int32(most) {
			cuts = append(cuts, at)
		}
	}
	return append(cuts, segments[len(segments)-1]*int32(k)), first
}

// cutFew cuts pairs into as many runs as one kernel takes, and their odd number; 0: they are more, or their counters
// for e experts more than a block's shared memory.
func cutFew(e, k int, segments []int32) (*dispatchFewRuns, int) {
	pairs := segments[len(segments)-1] * int32(k)
	for most := 32; most <= dispatchFewRun && len(segments)-1 <= dispatchFewSegments; most *= 2 {
		if int(pairs) > dispatchFew*most {
			continue
		}
		cuts, first := cutPairs(segments, k, most)
		if len(cuts)-1 > dispatchFew {
			continue
		}
		if len(cuts)%2 == 1 { // and an empty one
			cuts = append(cuts, pairs)
		}
		n := len(cuts) - 1
		if 4*e*n > driver.MaxShared-(2<<10) { // in addition to the sums of scan
			continue
		}
		s := &dispatchFewRuns{}
		copy(s.cuts[:], cuts)
		copy(s.first[:], first)
		return s, n
	}
	return nil, 0
}
