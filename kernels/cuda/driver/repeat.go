//go:build cuda

package driver

import (
	"bytes"
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// repeater carries out sequences of operations that come again. Their body runs on the host every time, but what it
// launches is compared with what the driver's graphs hold, so that only differences are told to the driver. A sequence
// is cut into pieces, each a graph that starts as soon as the body has come to its end: the card works on the first
// ones while the body still runs.
type repeater struct {
	known   map[string]*recording
	current *recording // whose body runs; nil: none
	first   int        // calls of the first piece; each has twice as many as the one before
	most    int        // but no more than these

	host   []byte // what the body stages; pinned
	base   cu.DevicePtr
	staged int
	sent   int            // of staged, what is on its way to the card
	kept   [][2]int       // of host: where what the body has staged begins and ends
	done   cu.Event       // the last graph's end: until then it reads what is staged
	stale  []cu.DevicePtr // workspaces outgrown by the body that runs, which its calls still name
}

// recording is one sequence.
type recording struct {
	pieces []*piece
	at     int // of the piece that the body is in
}

// piece is some of the calls of a sequence, as one graph.
type piece struct {
	calls   []call
	at      int   // of the body's next call
	changed []int // calls that the graph has otherwise
	rebuild bool  // the graph has other kernels
	graph   *graph
}

// A piece has few enough calls that the card need not wait long for the first, and enough of them to make up for the
// start of a graph, some microseconds.
const firstCalls, mostCalls = 16, 128

// stagedBytes is how much one body may stage: page tables are most of it, 4 bytes a page and sequence for each shape of
// attention.
const stagedBytes = ringBytes

func newRepeater() (*repeater, error) {
	p, err := pinned(stagedBytes)
	if err != nil {
		return nil, fmt.Errorf("%d MiB of pinned memory: %w", stagedBytes>>20, err)
	}
	r := &repeater{known: map[string]*recording{}, first: firstCalls, most: mostCalls, host: unsafe.Slice((*byte)(p),
		stagedBytes)}
	if r.base, err = cu.MemAlloc(stagedBytes); err != nil {
		return nil, fmt.Errorf("%d MiB of GPU memory: %w", stagedBytes>>20, err)
	}
	r.done, err = cu.MakeEvent(cu.DisableTiming)
	return r, err
}

// Repeat carries body out, as kernels.Repeater says: as graphs, but launch by launch while kernels are profiled.
func (c *Context) Repeat(key string, body func()) {
	if c.profile != nil {
		body()
		return
	}
	r := c.repeater
	rec := r.known[key]
	if rec == nil {
		rec = &recording{}
		r.known[key] = rec
	}
	c.Do(r.done.Synchronize)
	rec.begin()
	r.staged, r.sent, r.kept, r.current = 0, 0, r.kept[:0], rec
	defer func() { r.current = nil }()
	body()
	c.launchPiece()
	c.Do(r.end)
}

// launchPiece starts the piece that the body is in, if it has calls.
func (c *Context) launchPiece() {
	rec := c.repeater.current
	if rec.at == len(rec.pieces) || rec.pieces[rec.at].at == 0 {
		return
	}
	c.Do(c.repeater.launch)
	rec.at++
	c.counts.Launches++
}

// stage keeps values for the card and returns where they will be. Layers stage the same again and again: it is kept
// once.
func (r *repeater) stage(src []byte) cu.DevicePtr {
	for _, p := range r.kept {
		if bytes.Equal(r.host[p[0]:p[1]], src) {
			return r.base + cu.DevicePtr(p[0])
		}
	}
	if r.staged+len(src) > len(r.host) {
		panic(fmt.Sprintf("cuda: a repeated sequence stages more than %d bytes", stagedBytes))
	}
	at := r.staged
	copy(r.host[at:], src)
	r.kept = append(r.kept, [2]int{at, at + len(src)})
	r.staged = (at + len(src) + 255) &^ 255
	return r.base + cu.DevicePtr(at)
}

// launch sends what was staged since the last piece, brings the graph of this one up to date and runs it.
func (r *repeater) launch() error {
	p := r.current.pieces[r.current.at]
	if err := p.update(); err != nil {
		return err
	}
	if from := r.sent; from < r.staged {
		r.sent = r.staged
		if err := cu.MemcpyHtoDAsync(r.base+cu.DevicePtr(from), unsafe.Pointer(&r.host[from]), int64(r.staged-from),
			cu.NoStream); err != nil {
			return err
		}
	}
	return p.graph.run()
}

// end is after the last piece.
func (r *repeater) end() error {
	err := r.done.Record(cu.NoStream)
	for _, p := range r.stale {
		err = errors.Join(err, cu.MemFree(p)) // waits for the graphs
	}
	r.stale = nil
	return err
}

func (r *recording) begin() {
	r.at = 0
	for _, p := range r.pieces {
		p.at = 0
	}
}

// add takes the body's next call; full: its piece can start.
func (r *repeater) add(c *call) (full bool) {
	rec := r.current
	if rec.at == len(rec.pieces) {
		rec.pieces = append(rec.pieces, &piece{})
	}
	p := rec.pieces[rec.at]
	p.add(c)
	return p.at == min(r.most, r.first<<min(rec.at, 16))
}

// add holds a call against the one in its place and keeps what differs.
func (p *piece) add(c *call) {
	switch {
	case p.at == len(p.calls) || p.calls[p.at].f != c.f:
		p.calls, p.rebuild = append(p.calls[:p.at], c.keep(nil)), true
	case !p.calls[p.at].equal(c):
		p.calls[p.at] = c.keep(p.calls[p.at].params)
		p.changed = append(p.changed, p.at)
	}
	p.at++
}

// update makes the graph hold the calls of the body that has run.
func (p *piece) update() (err error) {
	if p.rebuild || p.at < len(p.calls) {
		if err := p.close(); err != nil {
			return err
		}
		p.calls, p.changed, p.rebuild = p.calls[:p.at], p.changed[:0], false
		p.graph, err = newGraph(p.calls)
		return err
	}
	for _, i := range p.changed {
		if err := p.graph.change(i, &p.calls[i]); err != nil {
			return err
		}
	}
	p.changed = p.changed[:0]
	return nil
}

// close drops the graph.
func (p *piece) close() error {
	if p.graph == nil {
		return nil
	}
	g := p.graph
	p.graph = nil
	return g.close()
}

func (r *repeater) close() error {
	err := errors.Join(unpin(unsafe.Pointer(&r.host[0])), cu.MemFree(r.base), cu.DestroyEvent(&r.done))
	for _, rec := range r.known {
		for _, p := range rec.pieces {
			err = errors.Join(err, p.close())
		}
	}
	r.known = nil
	return err
}
