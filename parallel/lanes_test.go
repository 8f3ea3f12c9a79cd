package parallel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
)

// Lanes run one after the other from one Yield to the next, and each finds what it has set when it goes on.
func TestInterleave(t *testing.T) {
	if err := world(t, 1, 1, 0).Run(func(r *Rank) error {
		var order []string
		shared := -1
		Interleave(r.Lanes(2), func(i int, lane *Rank) {
			lane.Resumed = func() { shared = i }
			shared = i
			for k := range 3 - i { // the second ends before the first
				order = append(order, fmt.Sprint(i, k))
				lane.Yield()
				if shared != i {
					t.Errorf("lane %d goes on with what lane %d has set", i, shared)
				}
			}
		})
		if want := []string{"0 0", "1 0", "0 1", "1 1", "0 2"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if r.Interleaved() || r.Resumed != nil {
			t.Error("a lane is one after it has ended")
		}
		r.Yield() // no other is there
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Lanes of all ranks exchange while the others compute: each has a stack of its own, and waits when the others have
// gone on.
func TestLanesExchange(t *testing.T) {
	for _, seed := range []uint64{0, 1, 2, 3} {
		rounds(t, world(t, 3, 3, seed), func(r *Rank, round int) (failed error) {
			Interleave(r.Lanes(2), func(i int, lane *Rank) {
				for k := range 4 {
					defer lane.Stack.Release(lane.Stack.Mark())
					dst := lane.Stack.New(kernels.F32, 3, 1)
					x := lane.Experts.AllGather(Pair{dst, fill(lane, lane.ID, 10*round+5*i+k, 1, 1)})
					lane.Yield()
					x.Wait()
					for rank, v := range dst.F32s() {
						if want := number(rank, 10*round+5*i+k, 0); v != want {
							failed = fmt.Errorf("rank %d, lane %d has %v of rank %d, want %v", r.ID, i, v, rank, want)
						}
					}
				}
			})
			return failed
		})
	}
}

// A lane that fails ends the others, and its error is the rank's; the stack of a bug is that of the lane.
func TestLaneFails(t *testing.T) {
	cause := errors.New("out of memory")
	for _, failing := range []int{0, 1} {
		ended := 0
		err := world(t, 2, 1, 0).Run(func(r *Rank) error {
			if r.ID == 1 {
				return nil
			}
			Interleave(r.Lanes(2), func(i int, lane *Rank) {
				defer func() { ended++ }()
				lane.Yield()
				if i == failing {
					panic(kernels.Fault{Err: cause})
				}
				lane.Yield()
			})
			return nil
		})
		if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "rank 0 on ") || ended != 2 {
			t.Errorf("error %v, %d lanes have ended", err, ended)
		}
	}
	err := world(t, 1, 1, 0).Run(func(r *Rank) error {
		Interleave(r.Lanes(2), func(i int, lane *Rank) { wrongIndex(i + 1) })
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "internal error") || !strings.Contains(err.Error(), "wrongIndex") {
		t.Errorf("error %v", err)
	}
}

func wrongIndex(i int) int { return []int{0}[i] }
