package parallel

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

func devices(t *testing.T, n int) []kernels.Device { return delayed(t, n, 0) }

// delayed are devices whose copies are carried out late, at moments drawn by a seed; 0: at once.
func delayed(t *testing.T, n int, seed uint64) []kernels.Device {
	t.Helper()
	var all []kernels.Device
	for range n {
		o := cpu.Options{Threads: 1, DelayCopies: seed}
		if seed == 0 {
			o.Few = 64 // bytes: operations bring some of the rows of tests
		}
		d, err := cpu.New(kernels.Default(), o)
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

func TestRun(t *testing.T) {
	all := devices(t, 3)
	var seen atomic.Int32
	err := Run(all, func(r *Rank) error {
		if r.Size != 3 || r.Dev != all[r.ID] {
			t.Errorf("rank %d of %d has another's device", r.ID, r.Size)
		}
		seen.Or(1 << r.ID)
		return nil
	})
	if err != nil || seen.Load() != 0b111 {
		t.Errorf("ranks %b ran, error %v", seen.Load(), err)
	}
}

// A fault is the rank's error in one line; a bug keeps its stack; the other ranks finish.
func TestRunFails(t *testing.T) {
	full := errors.New("out of memory")
	for _, c := range []struct {
		body  func()
		is    error
		words string
		lines bool
	}{
		{func() { panic(kernels.Fault{Err: full}) }, full, "rank 1", false},
		{func() { panic("index") }, nil, "internal error: index", true},
	} {
		var finished atomic.Int32
		err := Run(devices(t, 2), func(r *Rank) error {
			if r.ID == 1 {
				c.body()
			}
			finished.Add(1)
			return nil
		})
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.words) ||
			strings.Contains(err.Error(), "\n") != c.lines {
			t.Errorf("error %v", err)
		}
		if finished.Load() != 1 {
			t.Error("the other rank did not finish")
		}
	}
}

// Rank 0 is the goroutine that leads: it works alone or with the others, and tells the first fault of any.
func TestLead(t *testing.T) {
	all := devices(t, 3)
	w, err := Open(all, Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Size() != 3 || !slices.Equal(w.Devices(), all) {
		t.Errorf("%d ranks on %v", w.Size(), w.Devices())
	}
	full, alone, together := errors.New("out of memory"), 0, 0
	err = w.Lead(func(r *Rank) error {
		for range 2 {
			alone++
			before := together
			if err := w.Run(func(each *Rank) error {
				if each.ID == 0 {
					if together++; each != r {
						t.Error("another rank leads")
					}
				}
				return nil
			}); err != nil || together != before+1 {
				t.Errorf("ran %d times, error %v", together-before, err)
			}
		}
		panic(kernels.Fault{Err: w.Run(func(each *Rank) error {
			if each.ID == 2 {
				panic(kernels.Fault{Err: full})
			}
			return nil
		})})
	})
	if want := "rank 2 on " + all[2].Name() + ": out of memory"; !errors.Is(err, full) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if alone != 2 || together != 2 {
		t.Errorf("led %d times, %d with all", alone, together)
	}
}

// failing is a device whose last operations have failed.
type failing struct {
	*cpu.Device
	err error
}

func (f failing) Sync() error { return f.err }

// What a device reports at the end is the rank's error though its body had none; all ranks' errors are told.
func TestLastErrors(t *testing.T) {
	first, second := errors.New("illegal address"), errors.New("link is down")
	all := devices(t, 2)
	both := []kernels.Device{failing{all[0].(*cpu.Device), first}, failing{all[1].(*cpu.Device), second}}
	err := Run(both, func(*Rank) error { return nil })
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("error %v, want %v and %v", err, first, second)
	}
}

// A rank on another device has its activations there.
func TestWithDevice(t *testing.T) {
	all := devices(t, 2)
	err := Run(all[:1], func(r *Rank) error {
		b := r.WithDevice(all[1])
		b.Stack.New(kernels.F32, 1, 64)
		if b.Dev != all[1] || b.ID != r.ID || b.Size != r.Size || r.Stack.Held() != 0 || b.Stack.Held() == 0 {
			t.Errorf("the first device holds %d bytes, the other %d", r.Stack.Held(), b.Stack.Held())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTransfer(t *testing.T) {
	err := Run(devices(t, 1), func(r *Rank) error {
		if got := Download[int32](r, Upload(r, []int32{3, -1, 1 << 30})); !slices.Equal(got, []int32{3, -1, 1 << 30}) {
			t.Errorf("int32: %v", got)
		}
		if x, y := Upload(r, []float32{1}), Upload(r, []int32{1}); x.DType != kernels.F32 || y.DType != kernels.I32 {
			t.Errorf("a vector of floats is %s, of integers %s", x, y)
		}
		if got := Download[float32](r, Upload(r, []float32{0.5, -3e38})); !slices.Equal(got, []float32{0.5, -3e38}) {
			t.Errorf("fp32: %v", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Ranks stand by for rank 0 while it works alone, however long that takes, until all run again.
func TestStandby(t *testing.T) {
	w, err := Open(devices(t, 3), Mesh{Experts: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.patience = 20 * time.Millisecond
	var served, released atomic.Int32
	w.Standby(func(r *Rank) error {
		for {
			if r.Experts.StandBy([]int32{-1})[0][0] < 0 {
				released.Add(1)
				return nil
			}
			served.Add(1)
		}
	}, func(lead *Rank) { lead.Experts.ShareNumbers([]int32{-2}) })
	ask := func(r *Rank) {
		r.Experts.Summon()
		if got := r.Experts.ShareNumbers([]int32{7}); len(got) != 3 || got[0][0] != 7 || got[2][0] != -1 {
			t.Errorf("the ranks share %v", got)
		}
	}
	err = w.Lead(func(r *Rank) error {
		ask(r)
		time.Sleep(3 * w.patience)
		ask(r)
		if err := w.Run(func(r *Rank) error {
			r.Experts.Summon() // all are there
			r.Data.Barrier()
			return nil
		}); err != nil {
			return err
		}
		if served.Load() != 4 || released.Load() != 2 {
			t.Errorf("served %d times, released %d", served.Load(), released.Load())
		}
		ask(r)
		return nil
	})
	if err != nil || served.Load() != 6 || released.Load() != 4 {
		t.Errorf("served %d times, released %d, error %v", served.Load(), released.Load(), err)
	}
}

// The fault of a rank that stands by ends the work of rank 0, and is told.
func TestStandbyFails(t *testing.T) {
	w, err := Open(devices(t, 3), Mesh{Experts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	full := errors.New("out of memory")
	w.Standby(func(r *Rank) error {
		r.Data.StandBy(nil)
		if r.ID == 2 {
			panic(kernels.Fault{Err: full})
		}
		r.Data.StandBy(nil)
		return nil
	}, func(lead *Rank) { lead.Data.ShareNumbers(nil) })
	err = w.Lead(func(r *Rank) error {
		for {
			r.Data.Summon()
			r.Data.ShareNumbers(nil)
		}
	})
	if !errors.Is(err, full) || !strings.HasPrefix(err.Error(), "rank 2 on ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// What other ranks are started for runs while rank 0 goes on, and ends before they run anything else; a fault of one
// is told by what comes next, and none waits for ever.
func TestStart(t *testing.T) {
	full := errors.New("out of memory")
	for _, fails := range []bool{false, true} {
		w, err := Open(devices(t, 3), Mesh{Experts: 1})
		if err != nil {
			t.Fatal(err)
		}
		var over, ended atomic.Int32
		err = w.Lead(func(r *Rank) error {
			if err := w.Start(func(r *Rank) error {
				if fails && r.ID == 2 {
					panic(kernels.Fault{Err: full})
				}
				r.Data.Until(func() bool { return over.Load() > 0 })
				ended.Add(1)
				return nil
			}, func(*Rank) {
				if !fails {
					over.Add(1)
				}
			}); err != nil {
				return err
			}
			return w.Run(func(*Rank) error {
				if ended.Load() != 2 || over.Load() != 1 {
					t.Errorf("%d ranks have ended, told %d times", ended.Load(), over.Load())
				}
				return nil
			})
		})
		if fails != errors.Is(err, full) || !fails && err != nil {
			t.Errorf("error %v", err)
		}
		w.Close()
	}
}
