package parallel

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"lockstep/kernels"
)

// Mesh says how the ranks of a world divide the work.
type Mesh struct {
	Experts int // ranks over which the experts of one copy of the model are divided; it divides the number of ranks
}

// World is the ranks of a job. Its methods are called by one goroutine, the job's, which is none of the ranks'.
type World struct {
	ranks []*Rank
	work  []chan func(r *Rank) error
	errs  chan rankError
	// patience is how long a rank waits for the others at an exchange.
	patience time.Duration
	spins    int // see mostSpins

	cancelled chan struct{} // closed when a rank fails: the others leave their exchanges
	cancel    sync.Once
	failure   error
}

type rankError struct {
	rank int
	err  error
}

// patience is more than any exchange waits for a rank that computes.
const patience = 5 * time.Minute

// Open starts a goroutine, locked to its thread, for each device. Several devices must reach each other.
func Open(devices []kernels.Device, mesh Mesh) (*World, error) {
	n := len(devices)
	if mesh.Experts < 1 || n%mesh.Experts != 0 {
		return nil, fmt.Errorf("experts are divided over %d ranks, which does not divide the %d ranks", mesh.Experts, n)
	}
	if err := reachable(devices); err != nil {
		return nil, err
	}
	w := &World{errs: make(chan rankError), cancelled: make(chan struct{}), patience: patience}
	if n <= runtime.NumCPU() {
		w.spins = mostSpins
	}
	for i, dev := range devices {
		r := &Rank{Dev: dev, Stack: kernels.NewArena(dev), ID: i, Size: n}
		r.Transfers, _ = dev.(kernels.Transfers)
		w.ranks = append(w.ranks, r)
		w.work = append(w.work, make(chan func(r *Rank) error))
	}
	for i, g := range w.group("data", w.ranks) {
		w.ranks[i].Data = g
	}
	for from := 0; from < n; from += mesh.Experts {
		for i, g := range w.group("experts", w.ranks[from:from+mesh.Experts]) {
			w.ranks[from+i].Experts = g
		}
	}
	for i, r := range w.ranks {
		go w.serve(r, w.work[i])
	}
	return w, nil
}

func reachable(devices []kernels.Device) error {
	for i, dev := range devices {
		for j, other := range devices {
			if i == j {
				continue
			}
			t, ok := dev.(kernels.Transfers)
			if !ok {
				return fmt.Errorf("%s cannot be one of several ranks: it does not copy from other devices", dev.Name())
			}
			if err := t.Reaches(other); err != nil {
				return fmt.Errorf("rank %d does not reach rank %d: %w", i, j, err)
			}
		}
	}
	return nil
}

// Run runs body in all ranks at once and waits for them. A [kernels.Fault] becomes the rank's error; any other panic is
// a bug and keeps its stack. The errors come joined in the order of ranks, without those of ranks that only left an
// exchange because another had failed. After an error the world runs nothing more.
func (w *World) Run(body func(r *Rank) error) error {
	if w.failure != nil {
		return w.failure
	}
	for _, work := range w.work {
		work <- body
	}
	errs := make([]error, len(w.ranks))
	for range w.ranks {
		e := <-w.errs
		if !errors.Is(e.err, errCancelled) {
			errs[e.rank] = e.err
		}
	}
	w.failure = errors.Join(errs...)
	return w.failure
}

// Close ends the ranks' goroutines. The devices stay open.
func (w *World) Close() {
	for _, work := range w.work {
		close(work)
	}
}

// serve is the goroutine of a rank.
func (w *World) serve(r *Rank, work chan func(r *Rank) error) {
	runtime.LockOSThread()
	for body := range work {
		err := guard(r, body)
		if err != nil {
			w.cancel.Do(func() { close(w.cancelled) })
		}
		w.errs <- rankError{r.ID, err}
	}
}

// errCancelled is why a rank leaves an exchange when another has failed.
var errCancelled = errors.New("another rank has failed")

func guard(r *Rank, body func(r *Rank) error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case kernels.Fault:
			err = fmt.Errorf("rank %d on %s: %w", r.ID, r.Dev.Name(), p.Err)
		default:
			err = fmt.Errorf("rank %d: internal error: %v\n%s", r.ID, p, debug.Stack())
		}
	}()
	return body(r)
}
