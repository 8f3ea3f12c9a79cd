//go:build cuda

package moe

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Sizes of dispatch.cu.
const (
	scanThreads     = 1024
	segmentPairs    = 512
	fewSegments     = scanThreads / 32
	fewSegmentPairs = 256
	fewPacks        = 32
)

// Dispatch fills the plan from experts int32 [T, K]; packs are row offsets [0 ... T] of the layout.
func (d *Ops) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	g, k := p.Groups, experts.Cols
	if few, n := dispatchFew(g.Count, k, packs); n > 0 {
		d.Launch("dispatch_few", [3]int{1, 1, 1}, scanThreads, 4*g.Count*n, driver.Bytes(few), g.Offsets, p.Source,
			p.RowOf,
			experts, g.Count, n, g.Packs, k)
		return
	}
	cuts, first := segments(packs, k, segmentPairs)
	n := len(cuts) - 1
	counts, staged := d.Scratch(4*g.Count*n+4), driver.Stage(d.Context, append(cuts, first...))
	grid, shared := [3]int{n, 1, 1}, 4*g.Count
	d.Launch("dispatch_count", grid, 32, shared, counts, experts, staged, g.Count)
	d.Launch("dispatch_scan", [3]int{1, 1, 1}, scanThreads, 0, g.Offsets, counts, staged+cu.DevicePtr(4*len(cuts)),
		g.Count, n, g.Packs, experts.Len())
	d.Launch("dispatch_deal", grid, 32, shared, p.Source, p.RowOf, counts, experts, staged, g.Count, k)
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

// few is FewSegments of dispatch.cu.
type few struct {
	cuts  [fewSegments + 2]int32
	first [fewPacks]int32
}

// dispatchFew cuts pairs into as many segments as one kernel takes, and their odd number; 0: they are more, or their
// counters for e experts more than a block's shared memory.
func dispatchFew(e, k int, packs []int32) (*few, int) {
	pairs := packs[len(packs)-1] * int32(k)
	for most := 32; most <= fewSegmentPairs && len(packs)-1 <= fewPacks; most *= 2 {
		if int(pairs) > fewSegments*most {
			continue
		}
		cuts, first := segments(packs, k, most)
		if len(cuts)-1 > fewSegments {
			continue
		}
		if len(cuts)%2 == 1 { // and an empty one
			cuts = append(cuts, pairs)
		}
		n := len(cuts) - 1
		if 4*e*n > driver.MaxShared-(2<<10) { // beside the sums of scan
			continue
		}
		s := &few{}
		copy(s.cuts[:], cuts)
		copy(s.first[:], first)
		return s, n
	}
	return nil, 0
}
