//go:build cuda

package moe

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Dispatch fills the plan from experts int32 [T, K]; packs are row offsets [0 ... T] of the layout.
func (d *Ops) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	g, k := p.Groups, experts.Cols
	if few, n := cutFew(g.Count, k, packs); n > 0 {
		launchDispatchFew(d.Context, [3]int{1, 1, 1}, dispatchScan, 4*g.Count*n, few, g.Offsets, p.Source, p.RowOf,
			experts, g.Count, n, g.Packs, k)
		return
	}
	cuts, first := segments(packs, k, dispatchSegment)
	n := len(cuts) - 1
	counts, staged := d.Scratch(4*g.Count*n+4), driver.Stage(d.Context, append(cuts, first...))
	grid, shared := [3]int{n, 1, 1}, 4*g.Count
	launchDispatchCount(d.Context, grid, 32, shared, counts, experts, staged, g.Count)
	launchDispatchScan(d.Context, [3]int{1, 1, 1}, dispatchScan, 0, g.Offsets, counts, staged.From(len(cuts)), g.Count,
		n, g.Packs, experts.Len())
	launchDispatchDeal(d.Context, grid, 32, shared, p.Source, p.RowOf, counts, experts, staged, g.Count, k)
}

// segments cuts the pairs of packs into runs of at most `most`, none across packs: run i is pairs cuts[i] up to
// cuts[i+1], and first is the first run of each pack.
func segments(packs []int32, k, most int) (cuts, first []int32) {
	for i, from := range packs[:len(packs)-1] {
		first = append(first, int32(len(cuts)))
		for at := from * int32(k); at < packs[i+1]*int32(k); at += int32(most) {
			cuts = append(cuts, at)
		}
	}
	return append(cuts, packs[len(packs)-1]*int32(k)), first
}

// cutFew cuts pairs into as many segments as one kernel takes, and their odd number; 0: they are more, or their
// counters for e experts more than a block's shared memory.
func cutFew(e, k int, packs []int32) (*dispatchFewSegments, int) {
	pairs := packs[len(packs)-1] * int32(k)
	for most := 32; most <= dispatchFewSegment && len(packs)-1 <= dispatchFewPacks; most *= 2 {
		if int(pairs) > dispatchFew*most {
			continue
		}
		cuts, first := segments(packs, k, most)
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
		s := &dispatchFewSegments{}
		copy(s.cuts[:], cuts)
		copy(s.first[:], first)
		return s, n
	}
	return nil, 0
}
