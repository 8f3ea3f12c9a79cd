package cpu

import (
	"cmp"
	"slices"
	"testing"

	"lockstep/kernels"
)

// experts is k different experts for each of n tokens.
func (c *rowCase) experts(n, e, k int) kernels.Tensor {
	t := rowTensor(kernels.I32, n, k)
	for r := range n {
		for i, j := range c.rng.Perm(e)[:k] {
			t.I32s()[r*k+i] = int32(j)
		}
	}
	return t
}

func newPlan(n, k, e, segments int) kernels.Plan {
	return kernels.Plan{
		Groups: kernels.Groups{Offsets: rowTensor(kernels.I32, 1, e*segments+1), Count: e, Segments: segments},
		Source: rowTensor(kernels.I32, 1, n*k), RowOf: rowTensor(kernels.I32, n, k),
	}
}

var dispatchOps = []rowOp{
	{name: "Dispatch", uncut: true, run: func(d *Device, c *rowCase) (_, other []kernels.Tensor) {
		e, k := c.routeShape()
		ids := c.experts(c.n, e, k)
		p := newPlan(c.n, k, e, 2)
		d.Dispatch(p, ids, []int32{0, int32(c.n / 2), int32(c.n)})
		return nil, []kernels.Tensor{p.Groups.Offsets, p.Source, p.RowOf}
	}},
}

func TestDispatchSorts(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 41}
	c.start()
	const n, k, e = 50, 3, 9
	ids, segments := c.experts(n, e-1, k), []int32{0, 0, 20, 21, 50} // an expert without tokens, an empty pack
	p := newPlan(n, k, e, 4)
	d.Dispatch(p, ids, segments)

	type pair struct{ expert, token, slot int }
	var want []pair
	for at, x := range ids.I32s() {
		want = append(want, pair{int(x), at / k, at % k})
	}
	slices.SortFunc(want, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.expert, b.expert), cmp.Compare(a.token, b.token))
	})
	offsets := p.Groups.Offsets.I32s()
	for row, w := range want {
		if got := p.Source.I32s()[row]; int(got) != w.token {
			t.Fatalf("row %d comes from token %d, want %d", row, got, w.token)
		}
		if got := p.RowOf.I32s()[w.token*k+w.slot]; int(got) != row {
			t.Fatalf("token %d, slot %d is row %d, want %d", w.token, w.slot, got, row)
		}
		pack := 0
		for int(segments[pack+1]) <= w.token {
			pack++
		}
		if g := w.expert*4 + pack; row < int(offsets[g]) || row >= int(offsets[g+1]) {
			t.Fatalf("row %d of expert %d, pack %d is outside [%d, %d)", row, w.expert, pack, offsets[g], offsets[g+1])
		}
	}
	if offsets[0] != 0 || int(offsets[e*4]) != n*k || !slices.IsSorted(offsets) {
		t.Errorf("offsets %v", offsets)
	}
	ids.I32s()[7] = e
	mustPanic(t, "an expert that does not exist", func() { d.Dispatch(p, ids, segments) })
	ids.I32s()[7] = 0
	mustPanic(t, "segments that end early", func() { d.Dispatch(p, ids, []int32{0, 0, 20, 21, 49}) })
}
