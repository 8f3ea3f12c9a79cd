// Package parallel runs the ranks of a job: one goroutine for each device of the machine, all in one process. Rank 0 is
// the job itself, and has all run the same code at once. Ranks exchange memory in groups: every member pulls what it
// needs into its own memory, behind events of the others, and sums across ranks have a written order. It imports
// kernels only.
package parallel

import (
	"sync"

	"lockstep/kernels"
)

// Rank is one worker: the device it owns and its place among the others. It is passed first to whatever computes; there
// is no current device.
type Rank struct {
	Dev   kernels.Device
	Stack *kernels.Arena // activations of the present step, in the order of a stack
	ID    int
	Size  int

	pinned    *kernels.Arena    // see Pinned; nil: not asked for
	Transfers kernels.Transfers // the device, where it can copy from others and from the host; nil: it cannot

	Data    *Group // all ranks: each computes rows of its own
	Experts *Group // the ranks that share the experts of one copy of the model, Mesh.Experts consecutive ones

	contexts []*Group // see Context

	// Resumed is called in a lane that goes on when others have run: what they changed is set again. Nil: nothing is.
	Resumed func()
	tally   *tally          // of all its lanes; nil: the rank has no world
	putOff  *WeightGrads    // see PutOff; nil: nothing is
	aside   *sync.WaitGroup // see Aside
	yield   func()          // see Yield; nil: the rank has no lanes
	lanes   []*Rank         // on the same device, see Lanes
}

// Context is the group of so many consecutive ranks, a divisor of Mesh.Context above 1, that divide the rows of their
// sequences; nil in a plan.
func (r *Rank) Context(ranks int) *Group {
	for _, g := range r.contexts {
		if g.Size == ranks {
			return g
		}
	}
	return nil
}

// Aside runs work of the host concurrently with the rank, of one of a world. The world's Close waits for it, so devices
// are open.
func (r *Rank) Aside(work func()) { r.aside.Go(work) }

// Pinned is memory of the host, pinned for the device, for activations of the present step in the order of a stack. The
// device has to be a [kernels.HostMemory].
func (r *Rank) Pinned() *kernels.Arena {
	if r.pinned == nil {
		r.pinned = kernels.NewHostArena(r.Dev)
	}
	return r.pinned
}

// PinnedPeak is the largest number of bytes that activations took of the host so far.
func (r *Rank) PinnedPeak() int {
	if r.pinned == nil {
		return 0
	}
	return r.pinned.Peak()
}

// ClearStacks gives the rank empty stacks. That of the device has reserved so many bytes.
func (r *Rank) ClearStacks(bytes int) {
	r.Stack, r.pinned = kernels.NewArena(r.Dev), nil
	r.Stack.Reserve(bytes)
}

// WithDevice is a rank on another device that runs on the same goroutine as r, with a stack of its own and no groups.
func (r *Rank) WithDevice(dev kernels.Device) *Rank {
	return newRank(dev, r.ID, r.Size)
}

func newRank(dev kernels.Device, id, size int) *Rank {
	r := &Rank{Dev: dev, Stack: kernels.NewArena(dev), ID: id, Size: size}
	r.Transfers, _ = dev.(kernels.Transfers)
	return r
}

// Run opens a world of a rank for each device, runs body in all of them and waits for their devices. A [kernels.Fault]
// becomes the rank's error; any other panic is a bug and keeps its stack. The errors come joined in the order of ranks.
func Run(devices []kernels.Device, body func(r *Rank) error) error {
	w, err := Open(devices, Mesh{Experts: 1})
	if err != nil {
		return err
	}
	defer w.Close()
	return w.Run(func(r *Rank) error {
		if err := body(r); err != nil {
			return err
		}
		return r.Dev.Sync()
	})
}
