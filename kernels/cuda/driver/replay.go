//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// graphReplay runs repeated sequences of operations as CUDA graphs. The body of a sequence runs on the host every time;
// its launches are compared with the nodes of the graphs, and only those that differ are updated. A sequence is cut
// into segments, each a graph, which is launched as soon as the body has reached its end: the card works on the first
// ones while the body still runs.
type graphReplay struct {
	sequences map[string]*sequence
	current   *sequence // whose body runs; nil: none
	first     int       // calls of the first segment; each has twice as many as the one before
	most      int       // but no more than these

	host   []byte // what the body stages; pinned
	base   cu.DevicePtr
	staged int
	sent   int            // of staged, what is on its way to the card
	kept   [][2]int       // of host: where what the body has staged begins and ends
	done   cu.Event       // the last graph's end: until then it reads what is staged
	stale  []cu.DevicePtr // workspaces outgrown by the body that runs, which its calls still name
}

// sequence is one repeated sequence.
type sequence struct {
	segments []*segment
	at       int // of the segment that the body is in
}

// segment is some of the calls of a sequence, as one graph.
type segment struct {
	calls   []call
	at      int   // of the body's next call
	changed []int // calls that the graph has otherwise
	rebuild bool  // the graph has other kernels
	graph   *graph
}

// A segment has few enough calls that the card need not wait long for the first, and enough of them to make up for the
// start of a graph, some microseconds.
const firstCalls, mostCalls = 16, 128

// stagedBytes is how much one body may stage: page tables are most of it, 4 bytes a page and sequence for each shape of
// attention.
const stagedBytes = ringBytes

func newGraphReplay() (*graphReplay, error) {
	p, err := pinned(stagedBytes)
	if err != nil {
		return nil, fmt.Errorf("%d MiB of pinned memory: %w", stagedBytes>>20, err)
	}
	r := &graphReplay{sequences: map[string]*sequence{}, first: firstCalls, most: mostCalls,
		host: unsafe.Slice((*byte)(p), stagedBytes)}
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
	r := c.replay
	seq := r.sequences[key]
	if seq == nil {
		seq = &sequence{}
		r.sequences[key] = seq
	}
	c.Do(r.done.Synchronize)
	seq.begin()
	r.staged, r.sent, r.kept, r.current = 0, 0, r.kept[:0], seq
	defer func() { r.current = nil }()
	body()
	c.launchSegment()
	c.Do(r.end)
}

// launchSegment starts the segment that the body is in, if it has calls.
func (c *Context) launchSegment() {
	seq := c.replay.current
	if seq.at == len(seq.segments) || seq.segments[seq.at].at == 0 {
		return
	}
	c.Do(func() error { return c.replay.launch(c.toCard) })
	seq.at++
	c.counts.Launches++
}

// stage keeps values for the card and returns where they will be. Layers stage the same again and again: it is kept
// once.
func (r *graphReplay) stage(src []byte) cu.DevicePtr {
	if at, yes := stagedAt(r.host, r.kept, src); yes {
		return r.base + cu.DevicePtr(at)
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

// launch sends what was staged since the last segment, brings the graph of this one up to date and runs it.
func (r *graphReplay) launch(toCard func(cu.DevicePtr, []byte) error) error {
	p := r.current.segments[r.current.at]
	if err := p.update(); err != nil {
		return err
	}
	if from := r.sent; from < r.staged {
		r.sent = r.staged
		if err := toCard(r.base+cu.DevicePtr(from), r.host[from:r.staged]); err != nil {
			return err
		}
	}
	return p.graph.run()
}

// end is after the last segment.
func (r *graphReplay) end() error {
	err := r.done.Record(cu.NoStream)
	for _, p := range r.stale {
		err = errors.Join(err, cu.MemFree(p)) // waits for the graphs
	}
	r.stale = nil
	return err
}

func (r *sequence) begin() {
	r.at = 0
	for _, p := range r.segments {
		p.at = 0
	}
}

// add takes the body's next call; full: its segment can start.
func (r *graphReplay) add(c *call) (full bool) {
	seq := r.current
	if seq.at == len(seq.segments) {
		seq.segments = append(seq.segments, &segment{})
	}
	p := seq.segments[seq.at]
	p.add(c)
	return p.at == min(r.most, r.first<<min(seq.at, 16))
}

// add holds a call against the one in its place and keeps what differs.
func (s *segment) add(c *call) {
	switch {
	case s.at == len(s.calls) || s.calls[s.at].f != c.f:
		s.calls, s.rebuild = append(s.calls[:s.at], c.keep(nil)), true
	case !s.calls[s.at].equal(c):
		s.calls[s.at] = c.keep(s.calls[s.at].params)
		s.changed = append(s.changed, s.at)
	}
	s.at++
}

// update makes the graph hold the calls of the body that has run.
func (s *segment) update() (err error) {
	if s.rebuild || s.at < len(s.calls) {
		if err := s.close(); err != nil {
			return err
		}
		s.calls, s.changed, s.rebuild = s.calls[:s.at], s.changed[:0], false
		s.graph, err = newGraph(s.calls)
		return err
	}
	for _, i := range s.changed {
		if err := s.graph.change(i, &s.calls[i]); err != nil {
			return err
		}
	}
	s.changed = s.changed[:0]
	return nil
}

// close drops the graph.
func (s *segment) close() error {
	if s.graph == nil {
		return nil
	}
	g := s.graph
	s.graph = nil
	return g.close()
}

func (r *graphReplay) close() error {
	err := errors.Join(unpin(unsafe.Pointer(&r.host[0])), cu.MemFree(r.base), cu.DestroyEvent(&r.done))
	for _, seq := range r.sequences {
		for _, p := range seq.segments {
			err = errors.Join(err, p.close())
		}
	}
	r.sequences = nil
	return err
}
