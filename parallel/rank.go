// Package parallel runs the ranks of a job: one goroutine for each device of the machine, all in one process and all
// running the same code. It imports kernels only.
package parallel

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"lockstep/kernels"
)

// Rank is one worker: the device it owns and its place among the others. It is passed first to whatever computes; there
// is no current device.
type Rank struct {
	Dev   kernels.Device
	Stack *kernels.Arena // activations of the present step, in the order of a stack
	ID    int
	Size  int
}

// WithDevice is a rank on another device that runs on the same goroutine as r, with a stack of its own.
func (r *Rank) WithDevice(dev kernels.Device) *Rank {
	return &Rank{Dev: dev, Stack: kernels.NewArena(dev), ID: r.ID, Size: r.Size}
}

// Run starts one goroutine, locked to its thread, for each device and waits for all. A [kernels.Fault] becomes the
// rank's error; any other panic is a bug and keeps its stack. The errors come joined in the order of ranks.
func Run(devices []kernels.Device, body func(r *Rank) error) error {
	errs := make([]error, len(devices))
	done := make(chan struct{})
	for i, dev := range devices {
		go func() {
			runtime.LockOSThread()
			defer func() { done <- struct{}{} }()
			r := &Rank{Dev: dev, Stack: kernels.NewArena(dev), ID: i, Size: len(devices)}
			errs[i] = guard(r, body)
		}()
	}
	for range devices {
		<-done
	}
	return errors.Join(errs...)
}

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
	if err := body(r); err != nil {
		return err
	}
	return r.Dev.Sync()
}
