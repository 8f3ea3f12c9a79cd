package parallel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// world is n ranks with delayed copies and experts over some of them. By seed 2 operations copy a member's own rows.
func world(t *testing.T, n, experts int, seed uint64) *World {
	t.Helper()
	if before := leastByOperation; seed == 2 {
		leastByOperation = 1
		t.Cleanup(func() { leastByOperation = before })
	}
	w, err := Open(delayed(t, n, seed), Mesh{Experts: experts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// number is what a rank writes to an element in a round.
func number(rank, round, at int) float32 { return float32(1000*rank + 100*round + at + 1) }

// fill makes rows of a rank's numbers, those of a row's columns alike.
func fill(r *Rank, rank, round, rows, cols int) kernels.Tensor {
	t := r.Stack.New(kernels.F32, rows, cols)
	for i := range rows {
		for j := range cols {
			t.RowRange(i, i+1).F32s()[j] = number(rank, round, i)
		}
	}
	return t
}

// rounds runs body many times in all ranks, with its memory released and overwritten after each.
func rounds(t *testing.T, w *World, body func(r *Rank, round int) error) {
	t.Helper()
	err := w.Run(func(r *Rank) error {
		for round := range 40 {
			mark := r.Stack.Mark()
			if err := body(r, round); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			r.Stack.Release(mark)
			over := r.Stack.New(kernels.F32, 1, 4000).F32s() // where the others must not read any more
			for i := range over {
				over[i] = -1
			}
			r.Stack.Release(mark)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// eachWorld runs a test on 1 to 8 ranks, with copies at once and late.
func eachWorld(t *testing.T, test func(t *testing.T, w *World)) {
	for n := 1; n <= 8; n++ {
		for _, seed := range []uint64{0, 1, 2} {
			t.Run(fmt.Sprintf("%d ranks, copies by %d", n, seed), func(t *testing.T) { test(t, world(t, n, 1, seed)) })
		}
	}
}

// logged is a device that notes what an exchange asks of it.
type logged struct {
	*cpu.Device
	rank, records int
	calls         []string
}

// moment is the n-th that a rank has recorded.
type moment struct{ rank, n int }

func (moment) Happened() bool { return true }
func (moment) Synchronize()   {}

func (d *logged) Record() kernels.Event {
	d.records++
	d.calls = append(d.calls, fmt.Sprintf("record %d", d.records))
	return moment{d.rank, d.records}
}

func (d *logged) WaitEvents(events ...kernels.Event) {
	for _, e := range events {
		d.calls = append(d.calls, fmt.Sprintf("wait for %d of rank %d", e.(moment).n, e.(moment).rank))
	}
}

func (d *logged) GatherPeers(out kernels.Tensor, parts []kernels.Tensor) {
	d.calls = append(d.calls, fmt.Sprintf("gather %d rows of %d", out.Rows, len(parts)))
	d.Device.GatherPeers(out, parts)
}

// An exchange of a few rows is five calls of the driver between two ranks: it waits for the other to have computed its
// rows, brings all by one operation, and does not end before the other has read what is its own. What is to wait in
// place of later operations gets the moment when the rows are there too.
func TestFewRows(t *testing.T) {
	var all []kernels.Device
	for rank, d := range delayed(t, 2, 0) {
		all = append(all, &logged{Device: d.(*cpu.Device), rank: rank})
	}
	w, err := Open(all, Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	err = w.Run(func(r *Rank) error {
		src, dst := fill(r, r.ID, 0, 1, 3), r.Stack.New(kernels.F32, 2, 3)
		r.Data.AllGather(Pair{dst, src}).Wait()
		want := []string{"record 1", fmt.Sprintf("wait for 1 of rank %d", 1-r.ID), "gather 2 rows of 2", "record 2",
			fmt.Sprintf("wait for 2 of rank %d", 1-r.ID)}
		if got := r.Dev.(*logged).calls; !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		events := r.Data.AllToAll([]int{1, 1}, []int{1, 1}, Pair{dst, fill(r, r.ID, 1, 2, 3)}).Events()
		if want := []kernels.Event{moment{1 - r.ID, 4}, moment{r.ID, 4}}; !slices.Equal(events, want) {
			return fmt.Errorf("events %v, want %v", events, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whoever reads late still finds what the others gave.
func TestRead(t *testing.T) {
	for n := 1; n <= 4; n++ {
		w := world(t, n, 1, 0)
		rounds(t, w, func(r *Rank, round int) error {
			own, all := fill(r, r.ID, round, 2, 3), r.Stack.New(kernels.F32, 2*r.Size, 3)
			r.Data.Read(func(of [][]kernels.Tensor) {
				if round%r.Size == r.ID && round < 8 {
					time.Sleep(time.Millisecond)
				}
				r.Transfers.GatherPeers(all, of[1])
			}, own.RowRange(0, 1), own).Wait()
			for rank := range r.Size {
				for i := range 2 {
					if got, want := all.RowRange(2*rank+i, 2*rank+i+1).F32s()[2], number(rank, round, i); got != want {
						return fmt.Errorf("row %d of rank %d is %g, want %g", i, rank, got, want)
					}
				}
			}
			return nil
		})
	}
}

func TestAllGather(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			rows := func(rank int) int { return (rank + round) % 3 }
			var want []float32
			for rank := range r.Size {
				for i := range rows(rank) {
					want = append(want, number(rank, round, i), number(rank, round, i))
				}
			}
			src, dst := fill(r, r.ID, round, rows(r.ID), 2), r.Stack.New(kernels.F32, len(want)/2, 2)
			r.Data.AllGather(Pair{dst, src}).Wait()
			if got := dst.F32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d has %v, want %v", r.ID, got, want)
			}
			return nil
		})
	})
}

// Members have some rows each, and collect some of those of all, or none.
func TestCollect(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			ranges, rows := make([][][2]int, r.Size), 0
			var all []float32
			for i := range 2 * r.Size {
				n, of := 1+(i+round)%3, (i+round)%r.Size
				ranges[of] = append(ranges[of], [2]int{rows, rows + n})
				for at := rows; at < rows+n; at++ {
					all = append(all, number(of, round, at), number(of, round, at))
				}
				rows += n
			}
			first, n := r.ID*rows/r.Size/2, rows/(1+r.ID)/2
			src, dst := fill(r, r.ID, round, rows, 2), r.Stack.New(kernels.F32, n, 2)
			r.Data.Collect(first, ranges, Pair{dst, src}).Wait()
			if got, want := dst.F32s(), all[2*first:2*(first+n)]; !slices.Equal(got, want) {
				return fmt.Errorf("rank %d has %v, want %v", r.ID, got, want)
			}
			return nil
		})
	})
}

// Members are dealt rows of all, some of them none, and rows come back to those that had them.
func TestDeal(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			had := func(member int) int { return 2 + (member+round)%3 }
			var of []int // the member that has a row
			for member := range r.Size {
				of = append(of, slices.Repeat([]int{member}, had(member))...)
			}
			first := slices.Index(of, r.ID)
			ranges := make([][][2]int, r.Size)
			var want []float32
			for from, i := 0, round; from < len(of); i++ {
				to, member := min(from+1+i%3, len(of)), i/2%r.Size
				ranges[member] = append(ranges[member], [2]int{from, to})
				for row := from; row < to && member == r.ID; row++ {
					v := number(of[row], round, row-slices.Index(of, of[row]))
					want = append(want, v, v)
				}
				from = to
			}
			src, dst := fill(r, r.ID, round, had(r.ID), 2), r.Stack.New(kernels.F32, len(want)/2, 2)
			r.Data.Deal(ranges, Pair{dst, src}).Wait()
			if got := dst.F32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d is dealt %v, want %v", r.ID, got, want)
			}
			back := r.Stack.New(kernels.F32, src.Rows, 2)
			r.Data.CollectDealt(first, ranges, Pair{back, dst}).Wait()
			if got, want := back.F32s(), src.F32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d gets %v back, want %v", r.ID, got, want)
			}
			return nil
		})
	})
}

// Rows of all columns become columns of all rows, and come back.
func TestRowsToHeads(t *testing.T) {
	for seed := range uint64(3) {
		w, err := Open(delayed(t, 4, seed), Mesh{Experts: 1, Context: 4})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		rounds(t, w, func(r *Rank, round int) error {
			g := r.Context([]int{2, 4}[round%2])
			first := r.ID - g.Me
			rows := func(member int) int { return 1 + (member+round)%3 }
			src := fill(r, r.ID, round, rows(g.Me), 2*g.Size)
			for at := range src.Cols { // a column has numbers of its own
				src.F32s()[at] += float32(at) / 64
			}
			var want []float32
			for member := range g.Size {
				for row := range rows(member) {
					for _, at := range []int{2 * g.Me, 2*g.Me + 1} {
						v := number(first+member, round, row)
						if row == 0 {
							v += float32(at) / 64
						}
						want = append(want, v)
					}
				}
			}
			heads, back := r.Stack.New(kernels.F32, len(want)/2, 2), r.Stack.New(kernels.F32, src.Rows, src.Cols)
			g.RowsToHeads(Pair{heads, src}).Wait()
			if got := heads.F32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d has %v, want %v", r.ID, got, want)
			}
			g.HeadsToRows(Pair{back, heads}).Wait()
			if got := back.F32s(); !slices.Equal(got, src.F32s()) {
				return fmt.Errorf("rank %d has %v back of %v", r.ID, got, src.F32s())
			}
			return nil
		})
	}
}

// Each member has some tensors of every size, and none in some rounds.
func TestBroadcast(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			owned := make([][]kernels.Tensor, r.Size)
			for rank := range r.Size {
				for i := range (rank + round) % 3 {
					of := fill(r, rank, round, i+1, 2)
					if rank != r.ID {
						r.Dev.Zero(of)
					}
					owned[rank] = append(owned[rank], of)
				}
			}
			r.Data.Broadcast(owned).Wait()
			for rank, list := range owned {
				for i, of := range list {
					if got, want := of.F32s(), fill(r, rank, round, i+1, 2).F32s(); !slices.Equal(got, want) {
						return fmt.Errorf("rank %d has %v of rank %d, want %v", r.ID, got, rank, want)
					}
				}
			}
			return nil
		})
	})
}

func TestAllToAll(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			rows := func(from, to int) int { return (2*from + to + round) % 4 }
			var in, out []int
			var want [2][]float32 // of two tensors in one exchange
			for rank := range r.Size {
				first := 0 // of what the other sends to this rank
				for to := range r.ID {
					first += rows(rank, to)
				}
				for i := range rows(rank, r.ID) {
					for k := range want {
						want[k] = append(want[k], number(rank, round+k, first+i))
					}
				}
				in, out = append(in, rows(rank, r.ID)), append(out, rows(r.ID, rank))
			}
			var pairs []Pair
			for k := range want {
				pairs = append(pairs, Pair{r.Stack.New(kernels.F32, sum(in), 1), fill(r, r.ID, round+k, sum(out), 1)})
			}
			r.Data.AllToAll(in, out, pairs...).Wait()
			for k, pair := range pairs {
				if got := pair.Dst.F32s(); !slices.Equal(got, want[k]) {
					return fmt.Errorf("rank %d has %v, want %v", r.ID, got, want[k])
				}
			}
			return nil
		})
	})
}

// Messages of one rank to another come in order, and the sender may go on before they are taken.
func TestSend(t *testing.T) {
	const messages = 3
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			if r.Size == 1 {
				return nil // no rank sends to itself
			}
			next, before := (r.ID+1)%r.Size, (r.ID+r.Size-1)%r.Size
			var sent []*Exchange
			for i := range messages {
				sent = append(sent, r.Data.Send(next, fill(r, r.ID, round+i, i+1, 2), r.Transfers.Record()))
			}
			for i := range messages {
				dst := r.Stack.New(kernels.F32, i+1, 2)
				r.Data.Receive(before, dst, r.Transfers.Record()).Wait()
				if got, want := dst.F32s(), fill(r, before, round+i, i+1, 2).F32s(); !slices.Equal(got, want) {
					return fmt.Errorf("rank %d has %v of rank %d, want %v", r.ID, got, before, want)
				}
			}
			for _, x := range sent {
				x.Wait()
			}
			return nil
		})
	})
}

// A copy to another's memory is there for who awaits the notice of it, and for all behind a barrier.
func TestNotify(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			if r.Size == 1 {
				return nil
			}
			next, before := (r.ID+1)%r.Size, (r.ID+r.Size-1)%r.Size
			all := r.Data.Share(r.Stack.Zeros(kernels.F32, 2, 2))
			own := fill(r, r.ID, round, 2, 2)
			r.Data.Barrier()
			copied := r.Transfers.CopyPeer([]kernels.Event{r.Transfers.Record()},
				kernels.PeerCopy{Dst: all[next], Src: own})
			r.Data.Notify(next, round%2, copied)
			r.Data.Notify(next, 2, r.Transfers.Record()) // of another topic, and awaited first
			r.Data.Await(before, 2)
			r.Transfers.WaitEvents(r.Data.Await(before, round%2)...)
			want := fill(r, before, round, 2, 2).F32s()
			if got := all[r.ID].F32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d has %v of rank %d, want %v", r.ID, got, before, want)
			}
			r.Data.Barrier()
			copied = r.Transfers.CopyPeer([]kernels.Event{r.Transfers.Record()},
				kernels.PeerCopy{Dst: all[next].RowRange(0, 1), Src: own.RowRange(1, 2)})
			r.Transfers.WaitEvents(copied)
			r.Data.Barrier()
			if got := all[r.ID].F32s(); !slices.Equal(got[:2], want[2:]) {
				return fmt.Errorf("rank %d has %v behind the barrier, want %v", r.ID, got, want[2:])
			}
			r.Data.Barrier()
			return nil
		})
	})
}

// A rank that does not send is named by the one that waits for it, and one that does not take by the sender.
func TestAbsentPeer(t *testing.T) {
	for _, c := range []struct {
		body func(r *Rank, t kernels.Tensor)
		want string
	}{
		{func(r *Rank, t kernels.Tensor) {
			if r.ID == 1 {
				r.Data.Receive(2, t)
			}
		}, "for rank 2 at receive of data"},
		{func(r *Rank, t kernels.Tensor) {
			if r.ID == 1 {
				r.Data.Send(0, t).Wait()
			}
		}, "for rank 0 at receive of data"},
		{func(r *Rank, t kernels.Tensor) {
			if r.ID == 1 {
				r.Data.Await(0, 0)
			}
		}, "for rank 0 at await of data"},
	} {
		w := world(t, 3, 1, 0)
		w.patience = 50 * time.Millisecond
		err := w.Run(func(r *Rank) error {
			c.body(r, r.Stack.New(kernels.F32, 1, 1))
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// Groups of experts are consecutive ranks, which exchange at the same time.
func TestExpertGroups(t *testing.T) {
	rounds(t, world(t, 6, 3, 4), func(r *Rank, round int) error {
		first := r.ID / 3 * 3
		dst := r.Stack.New(kernels.F32, 3, 1)
		x := r.Experts.AllGather(Pair{dst, fill(r, r.ID, round, 1, 1)})
		all := r.Stack.New(kernels.F32, 6, 1)
		r.Data.AllGather(Pair{all, fill(r, r.ID, round, 1, 1)}).Wait()
		x.Wait()
		want := []float32{number(first, round, 0), number(first+1, round, 0), number(first+2, round, 0)}
		if got := dst.F32s(); !slices.Equal(got, want) || !slices.Equal(all.F32s()[first:first+3], want) {
			return fmt.Errorf("rank %d has %v of %v, want %v", r.ID, got, all.F32s(), want)
		}
		return nil
	})
}

// An exchange that is not waited for shows: its destination is NaN, and its memory cannot be released.
func TestMissingWait(t *testing.T) {
	err := world(t, 2, 1, 1).Run(func(r *Rank) error {
		mark := r.Stack.Mark()
		dst := r.Stack.New(kernels.F32, 2, 1)
		r.Data.AllGather(Pair{dst, fill(r, r.ID, 0, 1, 1)})
		if v := dst.F32s()[1-r.ID]; v == v {
			return fmt.Errorf("rank %d reads %v before it waits", r.ID, v)
		}
		r.Stack.Release(mark)
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "was not waited for") {
		t.Errorf("error %v", err)
	}
}

// Behind WaitReceived a member has its rows, and behind Wait the others have theirs: its source may be overwritten.
func TestWaitReceived(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *World) {
		rounds(t, w, func(r *Rank, round int) error {
			var want []float32
			for rank := range r.Size {
				want = append(want, number(rank, round, 0))
			}
			src, dst := fill(r, r.ID, round, 1, 1), r.Stack.New(kernels.F32, r.Size, 1)
			x := r.Data.AllGather(Pair{dst, src})
			x.WaitReceived()
			if got := dst.F32s(); !slices.Equal(got, want) {
				return fmt.Errorf("rank %d has %v, want %v", r.ID, got, want)
			}
			x.Wait()
			return nil
		})
	})
}

// A source that is released or overwritten when its member has received, but not waited, shows.
func TestWaitReceivedAlone(t *testing.T) {
	released := func(r *Rank) error {
		mark := r.Stack.Mark()
		r.Data.AllGather(Pair{r.Stack.New(kernels.F32, 2, 1), fill(r, r.ID, 0, 1, 1)}).WaitReceived()
		r.Stack.Release(mark)
		return nil
	}
	if err := world(t, 2, 1, 1).Run(released); err == nil || !strings.Contains(err.Error(), "was not waited for") {
		t.Errorf("error %v", err)
	}
	if wrong := overwritten(t, (*Exchange).WaitReceived); wrong == 0 {
		t.Error("sources were overwritten before Wait, and no rank got the new value: a test would not notice")
	}
	if wrong := overwritten(t, (*Exchange).Wait); wrong > 0 {
		t.Errorf("%d sources were overwritten behind Wait, and a rank got the new value", wrong)
	}
}

// overwritten counts the draws of delayed copies by which a rank gets what was written to a source behind some of its
// exchange.
func overwritten(t *testing.T, behind func(x *Exchange)) (wrong int) {
	t.Helper()
	for seed := range uint64(16) {
		var got [2]float32
		if err := world(t, 2, 1, seed+1).Run(func(r *Rank) error {
			dst, src := r.Stack.New(kernels.F32, 2, 1), fill(r, r.ID, 0, 1, 1)
			x := r.Data.AllGather(Pair{dst, src})
			if r.ID == 0 { // which is ahead
				behind(x)
				src.F32s()[0] = 77
			}
			r.Data.Share(src)
			x.Wait()
			got[r.ID] = dst.F32s()[1-r.ID]
			r.Data.Barrier()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got[1] == 77 {
			wrong++
		}
	}
	return wrong
}

// A source that is overwritten before the others have it shows in what they get.
func TestEarlyOverwrite(t *testing.T) {
	wrong := 0
	for seed := range uint64(8) {
		w := world(t, 2, 1, seed+1)
		var got [2]float32
		if err := w.Run(func(r *Rank) error {
			dst, src := r.Stack.New(kernels.F32, 2, 1), fill(r, r.ID, 0, 1, 1)
			meet := func() { r.Data.AllGather(Pair{r.Stack.New(kernels.F32, 2, 1), fill(r, r.ID, 0, 1, 1)}).Wait() }
			x := r.Data.AllGather(Pair{dst, src})
			meet() // all have begun the first
			src.F32s()[0] = 77
			x.Wait()
			meet() // all have ended it
			got[r.ID] = dst.F32s()[1-r.ID]
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if got[0] == 77 || got[1] == 77 {
			wrong++
		}
	}
	if wrong == 0 {
		t.Error("sources were overwritten early, and no rank got the new value: a test of exchanges would not notice")
	}
}

// A rank that fails ends the others' exchanges at once, and its error alone is told.
func TestCancelled(t *testing.T) {
	w, cause := world(t, 4, 1, 0), errors.New("out of memory")
	began := time.Now()
	err := w.Run(func(r *Rank) error {
		if r.ID == 2 {
			panic(kernels.Fault{Err: cause})
		}
		r.Data.AllGather(Pair{r.Stack.New(kernels.F32, 4, 1), fill(r, r.ID, 0, 1, 1)}).Wait()
		return nil
	})
	if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "rank 2 on ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	if time.Since(began) > 5*time.Second {
		t.Errorf("the others left after %v", time.Since(began))
	}
	if again := w.Run(func(*Rank) error { return nil }); !errors.Is(again, cause) {
		t.Errorf("a world that failed runs on: %v", again)
	}
}

// A rank that does not come to an exchange is named, with the exchange.
func TestAbsent(t *testing.T) {
	w := world(t, 3, 1, 0)
	w.patience = 50 * time.Millisecond
	err := w.Run(func(r *Rank) error {
		if r.ID != 1 {
			r.Data.AllGather(Pair{r.Stack.New(kernels.F32, 3, 1), fill(r, r.ID, 0, 1, 1)}).Wait()
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "waited 50ms for rank 1 at all-gather of data") {
		t.Errorf("error %v", err)
	}
}

// Ranks that are at different exchanges are a bug that is told.
func TestOutOfStep(t *testing.T) {
	err := world(t, 2, 1, 0).Run(func(r *Rank) error {
		src, dst := fill(r, r.ID, 0, 2, 1), r.Stack.New(kernels.F32, 4, 1)
		if r.ID == 0 {
			r.Data.AllGather(Pair{dst, src}).Wait()
		} else {
			r.Data.AllToAll([]int{2, 2}, []int{1, 1}, Pair{dst, src}).Wait()
		}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "internal error") || !strings.Contains(err.Error(), "all-to-all") {
		t.Errorf("error %v", err)
	}
}

// plain is a device that is no more than that.
type plain struct{ kernels.Device }

func TestOpenRefuses(t *testing.T) {
	all := devices(t, 4)
	for _, c := range []struct {
		devices []kernels.Device
		mesh    Mesh
		want    string
	}{
		{all, Mesh{Experts: 3}, "3 ranks, which does not divide the 4"},
		{all, Mesh{Experts: 0}, "0 ranks"},
		{all, Mesh{Experts: 1, Context: 3}, "sequences are divided over 3 ranks, which does not divide the 4"},
		{[]kernels.Device{all[0], plain{all[1]}}, Mesh{Experts: 1}, "cannot copy from the memory of"},
		{[]kernels.Device{plain{all[1]}, all[0]}, Mesh{Experts: 1}, "does not copy from other devices"},
	} {
		if _, err := Open(c.devices, c.mesh); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q: %v", c.want, err)
		}
	}
}
