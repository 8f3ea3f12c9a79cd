//go:build cuda

package cuda

import "lockstep/kernels"

// Dispatch fills the plan from experts int32 [T, K]; packs are row offsets [0 ... T] of the layout.
func (d *Device) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	const threads = 512
	g := p.Groups
	grid := [3]int{g.Count, 1, 1}
	d.launch("dispatch_count", grid, threads, 0, g.Offsets, experts, stage(d, packs), experts.Cols, g.Packs)
	d.launch("dispatch_add", [3]int{1, 1, 1}, 32, 0, g.Offsets, g.Count*g.Packs)
	d.launch("dispatch_deal", grid, threads, 0, p.Source, p.RowOf, g.Offsets, experts, experts.Len(), experts.Cols, g.Packs)
}
