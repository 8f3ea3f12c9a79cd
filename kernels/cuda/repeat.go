//go:build cuda

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// repeater carries out sequences of operations that come again. Their body runs on the host every time, but what it launches is compared with what the driver's
// graph holds, so that only differences are told to the driver, and all that the body stages goes to the card as one copy.
type repeater struct {
	known   map[string]*recording // nil: the sequence came once
	current *recording            // whose body runs; nil: none

	host   []byte // what the body stages; pinned
	base   cu.DevicePtr
	staged int
	pieces [][2]int       // of host: where what the body has staged begins and ends
	done   cu.Event       // the last graph's end: until then it reads what is staged
	stale  []cu.DevicePtr // workspaces outgrown by the body that runs, which its calls still name
}

// recording is one sequence.
type recording struct {
	calls   []call
	at      int   // of the body's next call
	changed []int // calls that the graph has otherwise
	rebuild bool  // the graph has other kernels
	graph   *graph
}

// stagedBytes is how much one body may stage: page tables are most of it, 4 bytes a page and sequence for each shape of attention.
const stagedBytes = ringBytes

func newRepeater() (*repeater, error) {
	p, err := pinned(stagedBytes)
	if err != nil {
		return nil, fmt.Errorf("%d MiB of pinned memory: %w", stagedBytes>>20, err)
	}
	r := &repeater{known: map[string]*recording{}, host: unsafe.Slice((*byte)(p), stagedBytes)}
	if r.base, err = cu.MemAlloc(stagedBytes); err != nil {
		return nil, fmt.Errorf("%d MiB of GPU memory: %w", stagedBytes>>20, err)
	}
	r.done, err = cu.MakeEvent(cu.DisableTiming)
	return r, err
}

// Repeat carries body out, as kernels.Repeater says: launch by launch the first time and while kernels are profiled, else as one graph.
func (d *Device) Repeat(key string, body func()) {
	r := d.repeater
	rec, came := r.known[key]
	if d.profile != nil || !came {
		r.known[key] = rec
		body()
		return
	}
	if rec == nil {
		rec = &recording{}
		r.known[key] = rec
	}
	d.do(r.done.Synchronize)
	rec.at, r.staged, r.pieces, r.current = 0, 0, r.pieces[:0], rec
	defer func() { r.current = nil }()
	body()
	d.do(r.enqueue)
	d.counts.Launches++
}

// stage keeps values for the card and returns where they will be. Layers stage the same again and again: it is kept once.
func (r *repeater) stage(src []byte) cu.DevicePtr {
	for _, p := range r.pieces {
		if bytes.Equal(r.host[p[0]:p[1]], src) {
			return r.base + cu.DevicePtr(p[0])
		}
	}
	if r.staged+len(src) > len(r.host) {
		panic(fmt.Sprintf("cuda: a repeated sequence stages more than %d bytes", stagedBytes))
	}
	at := r.staged
	copy(r.host[at:], src)
	r.pieces = append(r.pieces, [2]int{at, at + len(src)})
	r.staged = (at + len(src) + 255) &^ 255
	return r.base + cu.DevicePtr(at)
}

// enqueue brings the graph of the current recording up to date and runs it.
func (r *repeater) enqueue() error {
	if err := r.current.update(); err != nil {
		return err
	}
	if r.staged > 0 {
		if err := cu.MemcpyHtoDAsync(r.base, unsafe.Pointer(&r.host[0]), int64(r.staged), cu.NoStream); err != nil {
			return err
		}
	}
	err := errors.Join(r.current.graph.run(), r.done.Record(cu.NoStream))
	for _, p := range r.stale {
		err = errors.Join(err, cu.MemFree(p)) // waits for the graph
	}
	r.stale = nil
	return err
}

// add takes the body's next call.
func (r *recording) add(c call) {
	switch {
	case r.at == len(r.calls) || r.calls[r.at].kernel != c.kernel:
		r.calls, r.rebuild = append(r.calls[:r.at], c), true
	case !r.calls[r.at].equal(&c):
		r.calls[r.at] = c
		r.changed = append(r.changed, r.at)
	}
	r.at++
}

// update makes the graph hold the calls of the body that has run.
func (r *recording) update() (err error) {
	if r.rebuild || r.at < len(r.calls) {
		if err := r.close(); err != nil {
			return err
		}
		r.calls, r.changed, r.rebuild = r.calls[:r.at], r.changed[:0], false
		r.graph, err = newGraph(r.calls)
		return err
	}
	for _, i := range r.changed {
		if err := r.graph.change(i, &r.calls[i]); err != nil {
			return err
		}
	}
	r.changed = r.changed[:0]
	return nil
}

// close drops the graph.
func (r *recording) close() error {
	if r == nil || r.graph == nil {
		return nil
	}
	g := r.graph
	r.graph = nil
	return g.close()
}

func (r *repeater) close() error {
	err := errors.Join(unpin(unsafe.Pointer(&r.host[0])), cu.MemFree(r.base), cu.DestroyEvent(&r.done))
	for _, rec := range r.known {
		err = errors.Join(err, rec.close())
	}
	r.known = nil
	return err
}
