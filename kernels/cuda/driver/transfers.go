//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// transfers is what a context needs to copy from other cards, made when it first does: streams that the default one
// does not wait for, so that copy engines work while kernels run, and events. Consecutive copies take different
// streams: one that waits for its events does not hold up the next.
type transfers struct {
	copies [4]cu.Stream
	made   int // streams
	latest int // the stream of the latest copy
	events eventPool
	ticks  eventPool // of the card's clock
	pinned [][]byte  // of reads that are over
}

// Reaches lets the card's copy engines read the memory of another GPU, or says why they cannot.
func (c *Context) Reaches(other kernels.Device) error {
	d, ok := other.(interface{ Driver() *Context })
	if !ok {
		return fmt.Errorf("GPU %d cannot copy from the memory of %s", c.card, other.Name())
	}
	return c.reach(d.Driver())
}

func (c *Context) reach(of *Context) error {
	if of.card == c.card {
		return nil
	}
	return c.Attempt(func() error {
		if can, err := c.card.CanAccessPeer(of.card); err != nil {
			return err
		} else if can == 0 {
			return fmt.Errorf("GPU %d cannot copy from the memory of GPU %d: they have neither NVLink nor peer access "+
				"over PCIe", c.card, of.card)
		}
		if err := of.context.EnablePeerAccess(0); err != nil && !errors.Is(err, cu.PeerAccessAlreadyEnabled) {
			return fmt.Errorf("peer access from GPU %d to GPU %d: %w", c.card, of.card, err)
		}
		return nil
	})
}

// fewBytes come from another card sooner by an operation: what it reads passes the link in a microsecond or two, and a
// copy engine takes as long to begin.
const fewBytes = 64 << 10

// FewBytes is how many bytes an operation brings sooner than a copy engine.
func (c *Context) FewBytes() int { return c.Few }

// Record is the moment when everything enqueued so far is done.
func (c *Context) Record() kernels.Event {
	c.cutSegment()
	return c.record(cu.NoStream)
}

// cutSegment starts what a repeated sequence has called so far: its graphs hold kernels alone.
func (c *Context) cutSegment() {
	if c.Recording() {
		c.launchSegment()
	}
}

func (c *Context) record(s cu.Stream) *event {
	e := c.transfers.events.take(c)
	c.Do(func() error { return e.event.Record(s) })
	return e
}

// waitOn holds what is enqueued later in a stream until the events have happened.
func waitOn(s cu.Stream, events []kernels.Event) (err error) {
	for _, e := range events {
		err = errors.Join(err, s.Wait(e.(*event).event, 0))
	}
	runtime.KeepAlive(events)
	return err
}

// WaitEvents holds operations enqueued later until the events have happened.
func (c *Context) WaitEvents(events ...kernels.Event) {
	c.cutSegment()
	if len(events) > 0 {
		c.Do(func() error { return waitOn(cu.NoStream, events) })
	}
}

// CopyPeer copies rows by a copy engine, behind the events.
func (c *Context) CopyPeer(after []kernels.Event, copies ...kernels.PeerCopy) kernels.Event {
	c.cutSegment()
	for _, copy := range copies {
		if !copy.SameShape() {
			panic(fmt.Sprintf("cuda: copy of %s to %s", copy.Src, copy.Dst))
		}
	}
	s, done := c.transfers.stream(c, copies), c.transfers.events.take(c)
	c.Do(func() error {
		if err := waitOn(s, after); err != nil {
			return err
		}
		for _, copy := range copies {
			if err := copyOn(s, copy.Dst, copy.Src); err != nil {
				return err
			}
		}
		return done.event.Record(s)
	})
	return done
}

// copyOn enqueues a copy in a stream.
func copyOn(s cu.Stream, dst, src kernels.Tensor) error {
	size := dst.DType.Size()
	switch {
	case dst.Len() == 0:
		return nil
	case dst.Contiguous() && src.Contiguous():
		return cu.MemcpyAsync(Address(dst), Address(src), int64(dst.Bytes()), s)
	}
	return copyRows(Address(dst), Address(src), dst.Stride*size, src.Stride*size, dst.Cols*size,
		dst.Groups*dst.Rows, s)
}

// stream is that of the next copies. Those from memory of the host have one of their own, and those to it, where they
// follow one another: they are long, and neither exchanges nor copies of other memory of the host wait behind them.
func (t *transfers) stream(c *Context, copies []kernels.PeerCopy) cu.Stream {
	if len(copies) > 0 {
		if host := c.pinnedWith(copies[0].Src); host != nil {
			return c.once(&host.from)
		}
		if host := c.pinnedWith(copies[0].Dst); host != nil {
			return c.once(&host.to)
		}
	}
	for ; t.made < len(t.copies); t.made++ {
		c.Do(func() (err error) {
			t.copies[t.made], err = cu.MakeStream(cu.NonBlocking)
			return err
		})
	}
	t.latest = (t.latest + 1) % len(t.copies)
	return t.copies[t.latest]
}

// once is a stream that is made when it is first asked for.
func (c *Context) once(s **cu.Stream) cu.Stream {
	if *s == nil {
		c.Do(func() error {
			made, err := cu.MakeStream(cu.NonBlocking)
			*s = &made
			return err
		})
	}
	return **s
}

// ReadAsync starts to copy a contiguous int32 tensor to the host, behind everything enqueued so far.
func (c *Context) ReadAsync(src kernels.Tensor) func() []int32 {
	if src.DType != kernels.I32 || !src.Contiguous() {
		panic(fmt.Sprintf("cuda: numbers of %s", src))
	}
	c.cutSegment()
	if src.Len() == 0 {
		return func() []int32 { return nil }
	}
	host := c.transfers.takePinned(c, src.Bytes())
	c.Do(func() error { return c.toHost(host[:src.Bytes()], Address(src)) })
	e := c.record(cu.NoStream)
	return func() []int32 {
		c.counts.Waits++
		c.Do(e.event.Synchronize)
		values := make([]int32, src.Len())
		copy(values, unsafe.Slice((*int32)(unsafe.Pointer(&host[0])), len(values)))
		c.transfers.pinned = append(c.transfers.pinned, host)
		return values
	}
}

// leastPinned is the size of the pinned memory of a read, in bytes.
const leastPinned = 64 << 10

// takePinned is pinned memory of at least so many bytes.
func (t *transfers) takePinned(c *Context, bytes int) (host []byte) {
	for i, p := range t.pinned {
		if len(p) >= bytes {
			t.pinned = append(t.pinned[:i], t.pinned[i+1:]...)
			return p
		}
	}
	size := max(bytes, leastPinned)
	c.Do(func() error {
		p, err := pinned(size)
		host = unsafe.Slice((*byte)(p), size)
		return err
	})
	return host
}

// close gives back what was made, when nothing is enqueued.
func (t *transfers) close() (err error) {
	for i := range t.copies[:t.made] {
		err = errors.Join(err, t.copies[i].Destroy())
	}
	t.made = 0
	for _, p := range t.pinned {
		err = errors.Join(err, unpin(unsafe.Pointer(&p[0])))
	}
	t.pinned = nil
	return errors.Join(err, t.events.close(), t.ticks.close())
}

// event is a moment of a stream.
type event struct {
	context *Context
	event   cu.Event
}

// Happened reports whether the moment has passed.
func (e *event) Happened() (yes bool) {
	e.context.Do(func() error {
		err := e.event.Query()
		yes = err == nil
		if errors.Is(err, cu.NotReady) {
			return nil
		}
		return err
	})
	return yes
}

// Synchronize waits on the host until the moment has passed.
func (e *event) Synchronize() { e.context.Do(e.event.Synchronize) }

// eventPool keeps the driver's events for new ones of ours: one is free when nothing refers to ours any more.
type eventPool struct {
	mu   sync.Mutex
	free []cu.Event
	all  []cu.Event
}

func (p *eventPool) take(c *Context) *event {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &event{context: c}
	if n := len(p.free); n > 0 {
		e.event, p.free = p.free[n-1], p.free[:n-1]
	} else {
		c.Do(func() (err error) {
			flags := cu.DisableTiming
			if p == &c.transfers.ticks {
				flags = cu.DefaultEvent
			}
			e.event, err = cu.MakeEvent(flags)
			return err
		})
		p.all = append(p.all, e.event)
	}
	runtime.AddCleanup(e, p.give, e.event)
	return e
}

func (p *eventPool) give(e cu.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, e)
}

func (p *eventPool) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.all {
		err = errors.Join(err, cu.DestroyEvent(&p.all[i]))
	}
	p.all, p.free = nil, nil
	return err
}
