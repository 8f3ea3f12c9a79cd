//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
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
	captured  int       // graphs, so far

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

// segment is some of the calls of a sequence, as one graph. Another one is kept for each of the last lists of kernels:
// which kernel is launched may depend on rows or on positions.
type segment struct {
	calls  []call
	at     int      // of the body's next call
	graphs []*graph // the one that ran last is last
}

// mostGraphs is how many graphs a segment keeps.
const mostGraphs = 3

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
	r.staged = at + room(len(src))
	return r.base + cu.DevicePtr(at)
}

// room is the bytes between a piece and the next one: a power of two, so that page tables that grow by a few pages move
// nothing behind them, which calls name. Long pieces have what they take.
func room(size int) int {
	const least, most = 256, 64 << 10
	if size > most {
		return (size + least - 1) &^ (least - 1)
	}
	return max(least, 1<<bits.Len(uint(size-1)))
}

// launch sends what was staged since the last segment, brings the graph of this one up to date and runs it.
func (r *graphReplay) launch(toCard func(cu.DevicePtr, []byte) error) error {
	p := r.current.segments[r.current.at]
	graph, err := p.reuse()
	if graph == nil && err == nil {
		graph, err = p.capture()
		r.captured++
	}
	if err != nil {
		return err
	}
	if from := r.sent; from < r.staged {
		r.sent = r.staged
		if err := toCard(r.base+cu.DevicePtr(from), r.host[from:r.staged]); err != nil {
			return err
		}
	}
	return graph.run()
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
	p.keep(c)
	return p.at == min(r.most, r.first<<min(seq.at, 16))
}

// keep takes the body's next call.
func (s *segment) keep(c *call) {
	if s.at == len(s.calls) {
		s.calls = append(s.calls, call{})
	}
	s.calls[s.at] = c.keep(s.calls[s.at].params)
	s.at++
}

// reuse is the graph of the kernels that the body has called, brought up to date, and from now on the last; nil: there
// is none.
func (s *segment) reuse() (*graph, error) {
	calls := s.calls[:s.at]
	for i, g := range slices.Backward(s.graphs) {
		if g.hasKernels(calls) {
			s.graphs = append(slices.Delete(s.graphs, i, i+1), g)
			return g, g.update(calls)
		}
	}
	return nil, nil
}

// capture is a new graph of what the body has called, in the place of the one that has not run for longest where there
// are mostGraphs.
func (s *segment) capture() (*graph, error) {
	if len(s.graphs) == mostGraphs {
		oldest := s.graphs[0]
		s.graphs = slices.Delete(s.graphs, 0, 1)
		if err := oldest.close(); err != nil {
			return nil, err
		}
	}
	g, err := newGraph(s.calls[:s.at])
	if err == nil {
		s.graphs = append(s.graphs, g)
	}
	return g, err
}

// close drops the graphs.
func (s *segment) close() (err error) {
	for _, g := range s.graphs {
		err = errors.Join(err, g.close())
	}
	s.graphs = nil
	return err
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
