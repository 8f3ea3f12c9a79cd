package model

import (
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/parallel"
)

// inside is about what a block that keeps everything takes beyond its results, in this test's memory.
const inside = 5000

// takes is the memory of what a policy keeps.
func (m *Model) takes(p Policy, e Extent) (bytes int) {
	for i, bl := range m.Blocks {
		for _, res := range bl.work(m.DType, m.Hidden, e).results {
			if p.of(i)&(res.save|SaveAll) != 0 {
				bytes += res.bytes()
			}
		}
		if p.of(i) == SaveAll {
			bytes += inside
		}
	}
	return bytes
}

// A choice takes no more than it may, unless nothing is kept; nothing more would fit; the same memory makes the same
// choice.
func TestRecompute(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	eachModel(t, func(t *testing.T, r *parallel.Rank, dev *meter, m *Model, ids [][]int32) {
		e := Extent{Rows: 1 + rng.IntN(1000), Length: 1 + rng.IntN(300)}
		peak := func(p Policy) int { return 1000 + m.takes(p, e) }
		all := peak(nil)
		if m.Recompute(e, all, peak) != nil {
			t.Error("everything fits and is not kept")
		}
		for range 20 {
			available := rng.IntN(all)
			p := m.Recompute(e, available, peak)
			if p == nil || !slices.Equal(p, m.Recompute(e, available, peak)) {
				t.Errorf("%d bytes: %v, and another choice the second time", available, p)
			}
			if m.takes(p, e) > 0 && peak(p) > available {
				t.Errorf("%d bytes: a choice of %d", available, peak(p))
			}
			for _, c := range m.candidates(e) {
				if more := p.with([]candidate{c}); !slices.Equal(more, p) && p[c.block] != SaveAll &&
					peak(more) <= available {
					t.Errorf("%d bytes: %b of block %d would fit", available, c.save, c.block)
				}
			}
		}
	})
}

// Memory goes to what is worth most FLOPs a byte: of long sequences to attention first, from the last block on, of
// short ones to the product that ends a sublayer.
func TestRecomputeOrder(t *testing.T) {
	onModel(t, "qwen3_moe", kernels.LatentAuto, func(r *parallel.Rank, dev *meter, m *Model) {
		for length, want := range map[int]Save{1 << 16: SaveAttention, 2: SaveResidual} {
			e := Extent{Rows: 1 << 16, Length: length}
			order, last := m.candidates(e), len(m.Blocks)-1
			if order[0].save != want || order[0].block != last {
				t.Errorf("sequences of %d: first %b of block %d", length, order[0].save, order[0].block)
			}
			for i, c := range order[1 : len(order)-last-1] {
				if before := order[i]; before.flops/float64(before.bytes) < c.flops/float64(c.bytes) {
					t.Errorf("sequences of %d: %v before %v", length, before, c)
				}
			}
			p := m.Recompute(e, order[0].bytes, func(p Policy) int { return m.takes(p, e) })
			if p[last] != want || m.takes(p, e) != order[0].bytes {
				t.Errorf("sequences of %d, memory for one result: %b", length, p)
			}
		}
	})
}

func TestSummary(t *testing.T) {
	onModel(t, "qwen3_moe", kernels.LatentAuto, func(r *parallel.Rank, dev *meter, m *Model) {
		e, some := Extent{Rows: 64, Length: 64}, m.Everywhere(SaveAttention)
		some[0] |= SaveExperts
		last := m.Everywhere(0)
		last[len(last)-1] = SaveAll
		for _, c := range []struct {
			p    Policy
			want string
		}{
			{nil, "everything kept, nothing computed again"},
			{m.Everywhere(0), "nothing of 3 blocks kept, 100% of forward computed again"},
			{some, "attention of 3 and experts of 1 of 3 blocks kept, 81% of forward computed again"},
			{last, "everything of 1 of 3 blocks kept, 67% of forward computed again"},
		} {
			if got := m.Summary(c.p, e); got != c.want {
				t.Errorf("%v: %q, want %q", c.p, got, c.want)
			}
		}
	})
}
