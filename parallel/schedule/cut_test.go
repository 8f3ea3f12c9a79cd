package schedule

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// eachCut visits all ways to cut blocks into parts of one at least.
func eachCut(blocks, parts int, visit func(cut []int)) {
	var more func(cut []int, left int)
	more = func(cut []int, left int) {
		if len(cut) == parts-1 {
			visit(append(slices.Clone(cut), left))
			return
		}
		for n := 1; n <= left-(parts-1-len(cut)); n++ {
			more(append(slices.Clone(cut), n), left-n)
		}
	}
	more(nil, blocks)
}

// No other cut has a cheaper part.
func TestEven(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		blocks, costs := 1+rng.IntN(9), []int(nil)
		for range blocks {
			costs = append(costs, rng.IntN(20))
		}
		parts := 1 + rng.IntN(blocks)
		most := func(cut []int) (most int) {
			at := 0
			for _, n := range cut {
				sum := 0
				for _, c := range costs[at : at+n] {
					sum += c
				}
				most, at = max(most, sum), at+n
			}
			return most
		}
		best := most(Even(costs, parts))
		eachCut(blocks, parts, func(cut []int) {
			if most(cut) < best {
				t.Errorf("%v in %d parts: %v, and %v is evener", costs, parts, Even(costs, parts), cut)
			}
		})
	}
}

// Of two ranks no cut ends sooner, and of more none by more than a twentieth. Blocks are alike but for every fourth and
// the head behind the last.
func TestCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, chunks := range map[string]int{OneF1B: 1, ZeroBubble: 1, Interleaved: 2, Stream: 1} {
		for ranks := 2; ranks <= 4; ranks++ {
			blocks := make([]Cost, ranks*chunks+1+rng.IntN(4))
			for i := range blocks {
				if blocks[i] = (Cost{10, 11, 9, 12}); i%4 == 3 {
					blocks[i].Forward, blocks[i].Backward = 14, 17
				}
			}
			blocks[0].Update += 5
			head := &blocks[len(blocks)-1]
			head.Backward, head.Update = head.Backward+rng.IntN(40), head.Update+5
			micros := 4 * ranks
			s, cut := New(name, ranks, chunks, 1, micros), Cut(name, ranks, chunks, 1, micros, blocks)
			end := s.End(Stages(blocks, cut))
			eachCut(len(blocks), ranks*chunks, func(other []int) {
				if sooner := s.End(Stages(blocks, other)); sooner < end && (ranks == 2 || 20*sooner < 19*end) {
					t.Errorf("%s of %d ranks, %v: %v ends at %d, %v at %d", name, ranks, blocks, cut, end, other,
						sooner)
				}
			})
		}
	}
}

// A head that takes as long as a block is one, where all are cut, and updates count once a step.
func TestCutOfHead(t *testing.T) {
	blocks := slices.Repeat([]Cost{{1, 1, 1, 0}}, 13)
	blocks[12].Backward += 3
	if got := Cut(OneF1B, 2, 1, 1, 8, blocks); !slices.Equal(got, []int{7, 6}) {
		t.Errorf("13 blocks and a head: %v", got)
	}
	blocks = slices.Repeat([]Cost{{1, 1, 1, 0}}, 8)
	blocks[0].Update = 100
	if got := Cut(OneF1B, 2, 1, 1, 8, blocks); !slices.Equal(got, []int{4, 4}) {
		t.Errorf("a long update of one block, which no cut shortens: %v", got)
	}
	for i := range blocks {
		blocks[i].Update = 100 * (i / 4)
	}
	if got := Cut(OneF1B, 2, 1, 1, 2, blocks); got[0] <= 4 {
		t.Errorf("updates of the second half alone: %v", got)
	}
}

// A rank computes its own chunks, and the longest update comes behind all.
func TestTimes(t *testing.T) {
	s := New(Interleaved, 2, 2, 1, 4)
	costs := Costs{{1, 1, 1, 5}, {2, 2, 2, 0}, {4, 4, 4, 0}, {8, 8, 8, 4}}
	busy, end := s.Times(costs)
	if want := []int{4 * 15, 4 * 30}; !slices.Equal(busy, want) || end < 120 || s.End(costs) != end+5 {
		t.Errorf("busy %v, want %v; %d, with updates %d", busy, want, end, s.End(costs))
	}
}
