package parallel

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"lockstep/kernels"
)

// Mesh says how the ranks of a world divide the work.
type Mesh struct {
	Experts int // ranks over which the experts of one copy of the model are divided; it divides the number of ranks
	// Context is the most ranks over which the rows of a sequence are divided; it divides the number of ranks. 0: 1.
	Context int
	Stages  int // ranks of a pipeline, each of which waits for all before it. 0: 1
}

// World is the ranks of a job. One goroutine, the job's, calls its methods. It is rank 0, and works alone where the
// others have nothing to do: it reads data, evaluates and saves.
type World struct {
	ranks []*Rank
	work  []chan func(r *Rank) error // of the other ranks
	errs  chan rankError
	// patience is how long a rank waits for the others at an exchange.
	patience time.Duration
	spins    int // see mostSpins

	standby func(r *Rank) error // see Standby; nil: nothing
	release func(r *Rank)
	serving bool             // the other ranks stand by
	end     func(lead *Rank) // of what they run by themselves, see Start; nil: nothing
	running bool             // Run

	cancelled chan struct{} // closed when a rank fails: the others leave their exchanges
	cancel    sync.Once
	failure   error
}

type rankError struct {
	rank int
	err  error
}

// patience is more than any exchange waits for a rank that computes. The last stage of a pipeline waits for all others.
const patience = 5 * time.Minute

// Open starts a goroutine, locked to its thread, for each device but the first. Several devices must reach each other.
func Open(devices []kernels.Device, mesh Mesh) (*World, error) {
	n := len(devices)
	if mesh.Experts < 1 || n%mesh.Experts != 0 {
		return nil, fmt.Errorf("experts are divided over %d ranks, which does not divide the %d ranks", mesh.Experts, n)
	}
	if mesh.Context > 1 && n%mesh.Context != 0 {
		return nil, fmt.Errorf("sequences are divided over %d ranks, which does not divide the %d ranks", mesh.Context,
			n)
	}
	if err := reachable(devices); err != nil {
		return nil, err
	}
	w := &World{errs: make(chan rankError), cancelled: make(chan struct{}),
		patience: patience * time.Duration(max(mesh.Stages, 1))}
	if n <= runtime.NumCPU() {
		w.spins = mostSpins
	}
	for i, dev := range devices {
		r := newRank(dev, i, n)
		r.tally, r.aside = new(tally), new(sync.WaitGroup)
		w.ranks = append(w.ranks, r)
	}
	for i, g := range w.group("data", w.ranks) {
		w.ranks[i].Data = g
	}
	w.divide("experts", mesh.Experts, func(r *Rank, g *Group) { r.Experts = g })
	for size := 2; size <= mesh.Context; size++ {
		if mesh.Context%size == 0 {
			w.divide("context", size, func(r *Rank, g *Group) { r.contexts = append(r.contexts, g) })
		}
	}
	for _, r := range w.ranks[1:] {
		work := make(chan func(r *Rank) error)
		w.work = append(w.work, work)
		go w.serve(r, work)
	}
	return w, nil
}

// divide makes groups of so many consecutive ranks.
func (w *World) divide(name string, size int, give func(r *Rank, g *Group)) {
	for from := 0; from < len(w.ranks); from += size {
		for i, g := range w.group(name, w.ranks[from:from+size]) {
			give(w.ranks[from+i], g)
		}
	}
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

// Size is the number of ranks.
func (w *World) Size() int { return len(w.ranks) }

// Devices lists the devices of the ranks.
func (w *World) Devices() (list []kernels.Device) {
	for _, r := range w.ranks {
		list = append(list, r.Dev)
	}
	return list
}

// Lead runs body in rank 0 alone, and then waits for its device. The body may call Run. Errors are as those of Run.
func (w *World) Lead(body func(r *Rank) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := w.attempt(w.ranks[0], func(r *Rank) error {
		if err := body(r); err != nil {
			return err
		}
		return r.Dev.Sync()
	})
	if w.end == nil {
		return err
	}
	if others := w.dismiss(); others != nil && (err == nil || errors.Is(err, errCancelled)) {
		return others
	}
	return err
}

// Standby sets what the other ranks do for rank 0 while it works alone: they run serve from when rank 0 first calls
// [Group.Summon] until the next Run, when release makes serve return.
func (w *World) Standby(serve func(r *Rank) error, release func(lead *Rank)) {
	w.standby, w.release = serve, release
}

// Start runs body in all ranks but the first, which goes on. What comes next for them, a Run or a standby, first has
// rank 0 call end, which makes the body return in all of them, and waits for that. Errors are as those of Run.
func (w *World) Start(body func(r *Rank) error, end func(lead *Rank)) error {
	if err := w.dismiss(); err != nil {
		return err
	}
	w.end = end
	for _, work := range w.work {
		work <- body
	}
	return nil
}

// summon makes the other ranks stand by.
func (w *World) summon() {
	if w.running || w.serving {
		return
	}
	if err := w.Start(w.standby, w.release); err != nil {
		panic(kernels.Fault{Err: err})
	}
	w.serving = true
}

// dismiss ends what the other ranks run by themselves.
func (w *World) dismiss() error {
	if w.end == nil {
		return w.failure
	}
	end := w.end
	w.end, w.serving = nil, false
	own := w.attempt(w.ranks[0], func(r *Rank) error {
		end(r)
		return nil
	})
	return w.gatherErrors(own)
}

// Run runs body in all ranks at once and waits for them. A [kernels.Fault] becomes the rank's error; any other panic is
// a bug and keeps its stack. The errors come joined in the order of ranks, without those of ranks that only left an
// exchange because another had failed. After an error the world runs nothing more.
func (w *World) Run(body func(r *Rank) error) error {
	if err := w.dismiss(); err != nil {
		return err
	}
	w.running = true
	for _, work := range w.work {
		work <- body
	}
	runtime.LockOSThread()
	own := w.attempt(w.ranks[0], body)
	runtime.UnlockOSThread()
	w.running = false
	return w.gatherErrors(own)
}

// gatherErrors waits for the other ranks, and joins their errors behind that of rank 0.
func (w *World) gatherErrors(own error) error {
	errs := make([]error, len(w.ranks))
	errs[0] = own
	for range w.work {
		e := <-w.errs
		errs[e.rank] = e.err
	}
	for i, err := range errs {
		if errors.Is(err, errCancelled) {
			errs[i] = nil
		}
	}
	w.failure = errors.Join(errs...)
	return w.failure
}

// Close ends the ranks' goroutines, and waits for what they have set going. The devices stay open.
func (w *World) Close() {
	for _, r := range w.ranks {
		r.aside.Wait()
	}
	for _, work := range w.work {
		close(work)
	}
}

// serve is the goroutine of a rank.
func (w *World) serve(r *Rank, work chan func(r *Rank) error) {
	runtime.LockOSThread()
	for body := range work {
		w.errs <- rankError{r.ID, w.attempt(r, body)}
	}
}

// attempt runs body in a rank, and makes the others leave their exchanges where it fails.
func (w *World) attempt(r *Rank, body func(r *Rank) error) error {
	err := guard(r, body)
	if err != nil {
		w.cancel.Do(func() { close(w.cancelled) })
	}
	return err
}

// rankFault is the fault of a rank's device.
type rankFault struct {
	rank   int
	device string
	err    error
}

func (f rankFault) Error() string { return fmt.Sprintf("rank %d on %s: %v", f.rank, f.device, f.err) }
func (f rankFault) Unwrap() error { return f.err }

// errCancelled is why a rank leaves an exchange when another has failed.
var errCancelled = errors.New("another rank has failed")

func guard(r *Rank, body func(r *Rank) error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case kernels.Fault:
			if err = p.Err; !errors.As(err, new(rankFault)) {
				err = rankFault{r.ID, r.Dev.Name(), p.Err}
			}
		default:
			err = errors.Join(append([]error{fmt.Errorf("rank %d: internal error: %v", r.ID, p)}, stack()...)...)
		}
	}()
	if err = body(r); err == nil {
		r.Stack.CheckPins()
	}
	return err
}

// stack is the stack of a panic, an error for each line: messages escape newlines within one.
func stack() (lines []error) {
	for line := range strings.Lines(string(debug.Stack())) {
		lines = append(lines, errors.New(strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "    ")))
	}
	return lines
}
