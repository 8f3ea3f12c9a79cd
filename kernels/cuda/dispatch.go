//go:build cuda

package cuda

import "lockstep/kernels"

const (
	scanThreads  = 1024
	segmentPairs = 512
)

// segment is Segment of dispatch.cu.
type segment struct{ from, to int32 }

// Dispatch fills the plan from experts int32 [T, K]; packs are row offsets [0 ... T] of the layout.
func (d *Device) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	g, k := p.Groups, experts.Cols
	var segments []segment
	var first []int32
	for i := range g.Packs {
		first = append(first, int32(len(segments)))
		to := packs[i+1] * int32(k)
		for from := packs[i] * int32(k); from < to; from += segmentPairs {
			segments = append(segments, segment{from, min(from+segmentPairs, to)})
		}
	}
	n := len(segments)
	counts, cut := d.workspace(4*g.Count*n+4), stage(d, segments)
	grid, shared := [3]int{n, 1, 1}, 4*g.Count
	d.launch("dispatch_count", grid, 32, shared, counts, experts, cut, g.Count)
	d.launch("dispatch_scan", [3]int{1, 1, 1}, scanThreads, 0, g.Offsets, counts, stage(d, first), g.Count, n, g.Packs, experts.Len())
	d.launch("dispatch_deal", grid, 32, shared, p.Source, p.RowOf, counts, experts, cut, g.Count, k)
}
