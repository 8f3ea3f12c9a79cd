package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Dispatch fills the plan from experts int32 [T, K]: rows are the (token, slot) pairs sorted by expert, then by token;
// segments are row offsets [0 ... T] of the layout, and Offsets [Count*Segments+1] says where each (expert, segment)
// starts.
func (d *Device) Dispatch(p kernels.Plan, experts kernels.Tensor, segments []int32) {
	const op = "dispatch"
	tokens, k, g := experts.Rows, experts.Cols, p.Groups
	ids := indices(op, "experts", experts, tokens*k)
	source, rowOf := indices(op, "source", p.Source, tokens*k), indices(op, "rowOf", p.RowOf, tokens*k)
	offsets := indices(op, "offsets", g.Offsets, g.Count*g.Segments+1)
	if len(segments) != g.Segments+1 || segments[0] != 0 || int(segments[g.Segments]) != tokens {
		panic(fmt.Sprintf("cpu: dispatch: segments %v for %d segments of %d tokens", segments, g.Segments, tokens))
	}
	mustIndex(op, ids, g.Count)

	// A stable counting sort: counts of each (expert, segment), prefix sums, then rows in token order.
	clear(offsets)
	for segment, from := range segments[:g.Segments] {
		for _, e := range ids[int(from)*k : int(segments[segment+1])*k] {
			offsets[int(e)*g.Segments+segment+1]++
		}
	}
	for i := range offsets[1:] {
		offsets[i+1] += offsets[i]
	}
	next := make([]int32, g.Count)
	for e := range next {
		next[e] = offsets[e*g.Segments]
	}
	for at, e := range ids {
		source[next[e]], rowOf[at] = int32(at/k), next[e]
		next[e]++
	}
}
