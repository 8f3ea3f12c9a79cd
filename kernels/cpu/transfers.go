package cpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"lockstep/kernels"
)

// Reaches returns nil for a CPU device: all share the host's memory.
func (d *Device) Reaches(other kernels.Device) error {
	if _, ok := other.(interface{ hostMemory() }); !ok {
		return fmt.Errorf("%s cannot copy from the memory of %s", d.Name(), other.Name())
	}
	return nil
}

func (d *Device) hostMemory() {}

// Record is a moment that has passed: operations are done when they return.
func (d *Device) Record() kernels.Event {
	d.drawCopies()
	return passed{}
}

type passed struct{}

func (passed) Happened() bool { return true }

func (passed) Synchronize() {}

// tick is a moment of the host's clock.
type tick time.Time

// Tick is now: operations are done when they return.
func (d *Device) Tick() kernels.Tick { return tick(time.Now()) }

// Since is the seconds since an earlier tick.
func (t tick) Since(earlier kernels.Tick) float64 {
	return time.Time(t).Sub(time.Time(earlier.(tick))).Seconds()
}

// WaitEvents carries out the copies among the events that are still delayed.
func (d *Device) WaitEvents(events ...kernels.Event) {
	d.drawCopies()
	finish(events)
}

func finish(events []kernels.Event) {
	for _, e := range events {
		if c, ok := e.(*delayedCopy); ok {
			c.finish()
		}
	}
}

// CopyPeer copies rows at once, or with Options.DelayCopies when the event that it returns is waited for, or at a drawn
// moment before. Until then, once the events have happened, every byte of each Dst is 0xff: a NaN.
func (d *Device) CopyPeer(after []kernels.Event, copies ...kernels.PeerCopy) kernels.Event {
	for _, c := range copies {
		if !c.SameShape() {
			panic(fmt.Sprintf("cpu: copy of %s to %s", c.Src, c.Dst))
		}
	}
	carryOut := func() {
		for _, c := range copies {
			d.copyRows(c.Dst, c.Src)
		}
	}
	d.drawCopies()
	if d.delay == nil {
		finish(after)
		carryOut()
		return passed{}
	}
	c := &delayedCopy{after: after, copies: copies, carryOut: carryOut}
	if !slices.ContainsFunc(after, func(e kernels.Event) bool { return !e.Happened() }) {
		c.begin()
	}
	d.copies = append(d.copies, c)
	return c
}

// copyRows copies the rows of src, on all threads if there are many.
func (d *Device) copyRows(dst, src kernels.Tensor) {
	size := dst.DType.Size()
	if dst.Contiguous() && src.Contiguous() {
		to, from := dst.Raw(), src.Raw()
		d.pool.each(len(to), 1<<20, func(_, i, j int) { copy(to[i:j], from[i:j]) })
		return
	}
	eachRowBytes(dst, func(row []byte, r int) {
		at := src
		at.Groups, at.Rows = 1, src.Groups*src.Rows
		copy(row, at.RowRange(r, r+1).Raw()[:dst.Cols*size])
	})
}

// eachRowBytes visits the bytes of each row, rows of all groups counted through.
func eachRowBytes(t kernels.Tensor, visit func(row []byte, r int)) {
	t.Rows, t.Groups = t.Groups*t.Rows, 1
	for r := range t.Rows {
		visit(t.RowRange(r, r+1).Raw(), r)
	}
}

// ReadAsync reads at once.
func (d *Device) ReadAsync(t kernels.Tensor) func() []int32 {
	values := slices.Clone(indices("read", "t", t, t.Len()))
	return func() []int32 { return values }
}

// delayedCopy is copies that are carried out once, by whoever waits for them first.
type delayedCopy struct {
	mu       sync.Mutex
	after    []kernels.Event
	begun    bool // where they go is not what it was
	copies   []kernels.PeerCopy
	carryOut func() // nil: it has been
}

// begin waits for what the copies are behind, and overwrites where they go.
func (c *delayedCopy) begin() {
	if c.begun {
		return
	}
	finish(c.after)
	for _, c := range c.copies {
		eachRowBytes(c.Dst, func(row []byte, _ int) {
			for i := range row {
				row[i] = 0xff
			}
		})
	}
	c.begun = true
}

func (c *delayedCopy) Happened() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.carryOut == nil
}

// Synchronize carries the copies out.
func (c *delayedCopy) Synchronize() { c.finish() }

func (c *delayedCopy) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.carryOut != nil {
		c.begin()
		c.carryOut()
		c.carryOut = nil
	}
}

// drawCopies carries out some of the device's delayed copies.
func (d *Device) drawCopies() {
	if d.delay == nil {
		return
	}
	d.copies = slices.DeleteFunc(d.copies, func(c *delayedCopy) bool {
		if d.delay.IntN(4) == 0 {
			c.finish()
		}
		return c.Happened()
	})
}

// newDelay is the generator of moments for delayed copies; seed 0: copies are not delayed.
func newDelay(seed uint64) *rand.Rand {
	if seed == 0 {
		return nil
	}
	return rand.New(rand.NewPCG(seed, 1))
}
