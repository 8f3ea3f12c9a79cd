package cpu

import (
	"math"
	"slices"
	"testing"
	"time"

	"lockstep/kernels"
)

// peers are devices whose copies are delayed by a seed; 0: not.
func peers(t *testing.T, n int, delay uint64) (all []*Device) {
	t.Helper()
	for range n {
		d, err := New(kernels.Default(), Options{Threads: 1, DelayCopies: delay})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, d)
	}
	return all
}

// Rows with strides and of several groups arrive where they belong, and nothing between them changes.
func TestCopyPeer(t *testing.T) {
	for _, delay := range []uint64{0, 1} {
		d := peers(t, 2, delay)
		c := rowCase{seed: 61, dtype: kernels.BF16}
		c.start()
		src, around := c.strided(6, 7), c.strided(6, 9)
		dst := around.ColRange(1, 8)
		src.Groups, src.Rows, dst.Groups, dst.Rows = 2, 3, 2, 3
		before := rowValues(around)
		d[1].WaitEvents(d[1].CopyPeer([]kernels.Event{d[0].Record()}, kernels.PeerCopy{Dst: dst, Src: src}))
		src.Groups, src.Rows = 1, 6
		want := rowValues(src)
		for r, row := range slices.Collect(slices.Chunk(rowValues(around), 9)) {
			if !slices.Equal(row[1:8], want[7*r:][:7]) || row[0] != before[9*r] || row[8] != before[9*r+8] {
				t.Errorf("delay %d: row %d is %v", delay, r, row)
			}
		}
	}
}

// Ticks tell the time.
func TestTick(t *testing.T) {
	d := peers(t, 1, 0)[0]
	first := d.Tick()
	time.Sleep(20 * time.Millisecond)
	if s := d.Tick().Since(first); s < 0.02 || s > 10 {
		t.Errorf("%g s, want 0.02", s)
	}
}

// What does not wait for a delayed copy reads NaN, and a source that changes before the copy is waited for is copied as
// it is then.
func TestDelayCopies(t *testing.T) {
	d := peers(t, 2, 3)
	seen := map[bool]int{}
	for range 100 {
		src, dst := kernels.Wrap([]float32{1, 2}, 1, 2), kernels.Wrap(make([]float32, 2), 1, 2)
		e := d[1].CopyPeer(nil, kernels.PeerCopy{Dst: dst, Src: src})
		if v := dst.F32s()[0]; v == v {
			t.Fatalf("a copy is done when it has been asked for: %v", v)
		}
		d[1].Record() // may carry it out
		early := e.Happened()
		seen[early]++
		if v := float64(dst.F32s()[0]); math.IsNaN(v) == early {
			t.Fatalf("a copy that has happened, %t, left %v", early, v)
		}
		src.F32s()[0] = 5
		d[0].WaitEvents(e) // another device's
		want := float32(5)
		if early {
			want = 1
		}
		if got := dst.F32s(); got[0] != want || got[1] != 2 {
			t.Fatalf("copied %v, want %v", got, want)
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("of 100 copies %d were carried out early", seen[true])
	}
	chain := kernels.Wrap([]float32{7}, 1, 1)
	a, b := kernels.Wrap(make([]float32, 1), 1, 1), kernels.Wrap(make([]float32, 1), 1, 1)
	first := d[0].CopyPeer(nil, kernels.PeerCopy{Dst: a, Src: chain})
	d[1].WaitEvents(d[1].CopyPeer([]kernels.Event{first}, kernels.PeerCopy{Dst: b, Src: a}))
	if b.F32s()[0] != 7 {
		t.Errorf("a copy behind a delayed one has %v", b.F32s())
	}
}

func TestReaches(t *testing.T) {
	d := peers(t, 2, 0)
	if err := d[0].Reaches(d[1]); err != nil {
		t.Error(err)
	}
	if err := d[0].Reaches(elsewhere{d[1]}); err == nil {
		t.Error("a device of another kind is reached")
	}
	read := d[0].ReadAsync(kernels.WrapI32([]int32{4, 5}))
	if got := read(); !slices.Equal(got, []int32{4, 5}) {
		t.Errorf("read %v", got)
	}
}

// elsewhere is a device whose memory is not the host's.
type elsewhere struct{ kernels.Device }
