package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Dispatch fills the plan from experts int32 [T, K]: rows are the (token, slot) pairs sorted by expert, then by token; packs are row
// offsets [0 ... T] of the layout, and Offsets [Count*Packs+1] says where each (expert, pack) starts.
func (d *Device) Dispatch(p kernels.Plan, experts kernels.Tensor, packs []int32) {
	const op = "dispatch"
	tokens, k, g := experts.Rows, experts.Cols, p.Groups
	picks := indices(op, "experts", experts, tokens*k)
	source, rowOf := indices(op, "source", p.Source, tokens*k), indices(op, "rowOf", p.RowOf, tokens*k)
	offsets := indices(op, "offsets", g.Offsets, g.Count*g.Packs+1)
	if len(packs) != g.Packs+1 || packs[0] != 0 || int(packs[g.Packs]) != tokens {
		panic(fmt.Sprintf("cpu: dispatch: packs %v for %d packs of %d tokens", packs, g.Packs, tokens))
	}
	mustIndex(op, picks, g.Count)

	// Count each (expert, pack) one place up, add up, and deal rows out in token order: a stable counting sort.
	clear(offsets)
	eachPick(picks, k, packs, func(pack, at int) { offsets[int(picks[at])*g.Packs+pack+1]++ })
	for i := range offsets[1:] {
		offsets[i+1] += offsets[i]
	}
	next := make([]int32, len(offsets))
	copy(next, offsets)
	eachPick(picks, k, packs, func(pack, at int) {
		n := &next[int(picks[at])*g.Packs+pack]
		source[*n], rowOf[at] = int32(at/k), *n
		*n++
	})
}

// eachPick calls f for every (token, slot) in order, with its place in experts and the pack of its token.
func eachPick(picks []int32, k int, packs []int32, f func(pack, at int)) {
	for pack, from := range packs[:len(packs)-1] {
		for at := int(from) * k; at < int(packs[pack+1])*k; at++ {
			f(pack, at)
		}
	}
}
