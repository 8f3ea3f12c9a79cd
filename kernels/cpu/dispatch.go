package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Dispatch fills the plan from experts int32 [T, K]: rows are the (token, slot) pairs sorted by expert, then by token;
// packs are row offsets [0 ... T] of the layout, and Offsets [Count*Packs+1] says where each (expert, pack) starts.
func (d *Device) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	const op = "dispatch"
	tokens, k, g := experts.Rows, experts.Cols, p.Groups
	ids := indices(op, "experts", experts, tokens*k)
	source, rowOf := indices(op, "source", p.Source, tokens*k), indices(op, "rowOf", p.RowOf, tokens*k)
	offsets := indices(op, "offsets", g.Offsets, g.Count*g.Packs+1)
	if len(packs) != g.Packs+1 || packs[0] != 0 || int(packs[g.Packs]) != tokens {
		panic(fmt.Sprintf("cpu: dispatch: packs %v for %d packs of %d tokens", packs, g.Packs, tokens))
	}
	mustIndex(op, ids, g.Count)

	// A stable counting sort: counts of each (expert, pack), prefix sums, then rows in token order.
	clear(offsets)
	for pack, from := range packs[:g.Packs] {
		for _, e := range ids[int(from)*k : int(packs[pack+1])*k] {
			offsets[int(e)*g.Packs+pack+1]++
		}
	}
	for i := range offsets[1:] {
		offsets[i+1] += offsets[i]
	}
	next := make([]int32, g.Count)
	for e := range next {
		next[e] = offsets[e*g.Packs]
	}
	for at, e := range ids {
		source[next[e]], rowOf[at] = int32(at/k), next[e]
		next[e]++
	}
}
