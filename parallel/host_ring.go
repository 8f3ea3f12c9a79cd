package parallel

import (
	"fmt"

	"lockstep/kernels"
)

// HostRing passes memory of the host through slots on a rank's device, piece by piece in one order: copied in ahead of
// its use, changed there, and copied back behind it. Pieces that one slot has one after the other follow each other by
// the events of their copies, so the host waits for none.
type HostRing struct {
	dev    kernels.Transfers // nil: a plan, which copies nothing
	slots  []hostSlot
	pieces []hostPiece
	at     int // the piece that is used; -1: none
	next   int // the first piece that may be used
}

// hostPiece is consecutive numbers of the host's memory.
type hostPiece struct {
	host kernels.Tensor // F32 [1, n]
	out  kernels.Event  // it is back in the host's memory; nil: it always was there
}

// hostSlot is memory on the device for one piece at a time.
type hostSlot struct {
	t     kernels.Tensor // F32 [1, n]
	holds int            // the piece that is there or on its way; -1: none
	in    kernels.Event  // the latest copy to it is done; nil: there was none
}

// Slots is how many slots a ring of so many bytes has, and the bytes of each. At least one piece is on the device.
func Slots(columns []int, bytes int) (slots, each int) {
	for _, n := range columns {
		each = max(each, kernels.ArenaBytes(kernels.F32, 1, n))
	}
	if each == 0 {
		return 0, 0
	}
	return min(max(bytes/each, 1), len(columns)), each
}

// NewHostRing makes a ring of pieces of so many fp32 numbers, which lie in host memory, with slots of together at most
// so many bytes on the device, or those of one piece.
func NewHostRing(dev kernels.Device, device, host *kernels.Arena, columns []int, bytes int) *HostRing {
	g := &HostRing{at: -1}
	if !kernels.IsMeta(dev) {
		g.dev = dev.(kernels.Transfers)
	}
	slots, each := Slots(columns, bytes)
	for range slots {
		g.slots = append(g.slots, hostSlot{t: device.New(kernels.F32, 1, each/kernels.F32.Size()), holds: -1})
	}
	for _, n := range columns {
		g.pieces = append(g.pieces, hostPiece{host: host.New(kernels.F32, 1, n)})
	}
	return g
}

// Pieces is their number.
func (g *HostRing) Pieces() int { return len(g.pieces) }

// Host is a piece in the host's memory. See [HostRing.Flush].
func (g *HostRing) Host(piece int) kernels.Tensor { return g.pieces[piece].host }

// OnDevice is where a piece lies while it is used.
func (g *HostRing) OnDevice(piece int) kernels.Tensor {
	return g.slot(piece).t.ColRange(0, g.pieces[piece].host.Cols)
}

func (g *HostRing) slot(piece int) *hostSlot { return &g.slots[piece%len(g.slots)] }

// Fetch begins to copy the first pieces to the device, as many as it has slots for. The host's memory must not be
// changed until they have been used.
func (g *HostRing) Fetch() {
	if g == nil || g.dev == nil {
		return
	}
	for i := range g.slots {
		g.fetch(i)
	}
}

// fetch begins to copy a piece to its slot, once the slot's pieces, and it itself, are back from their last use.
func (g *HostRing) fetch(i int) {
	s := g.slot(i)
	if s.holds == i {
		return
	}
	var after []kernels.Event
	for k := i % len(g.slots); k < len(g.pieces); k += len(g.slots) {
		after = appendEvent(after, g.pieces[k].out)
	}
	after = appendEvent(after, s.in)
	s.holds, s.in = i, g.dev.CopyPeer(after, kernels.PeerCopy{Dst: g.OnDevice(i), Src: g.pieces[i].host})
}

// appendEvent adds an event where there is one.
func appendEvent(list []kernels.Event, e kernels.Event) []kernels.Event {
	if e == nil {
		return list
	}
	return append(list, e)
}

// Use holds operations that are enqueued later until a piece is on the device, and gives the piece back that was used
// before. Pieces are used in order, each at most once between two calls of Finish.
func (g *HostRing) Use(piece int) {
	if g == nil || g.dev == nil || piece == g.at {
		return
	}
	if piece < g.next {
		panic(fmt.Sprintf("parallel: piece %d of host memory is used behind piece %d", piece, g.next-1))
	}
	g.GiveBack()
	g.fetch(piece)
	g.at, g.next = piece, piece+1
	g.dev.WaitEvents(g.slot(piece).in)
}

// GiveBack copies the piece that is used to the host, behind what is enqueued, and begins to fetch the one that has its
// slot next. It is not used again before Finish.
func (g *HostRing) GiveBack() {
	if g == nil || g.dev == nil || g.at < 0 {
		return
	}
	g.slot(g.at).holds = -1
	g.pieces[g.at].out = g.dev.CopyPeer([]kernels.Event{g.dev.Record()},
		kernels.PeerCopy{Dst: g.pieces[g.at].host, Src: g.OnDevice(g.at)})
	if next := g.at + len(g.slots); next < len(g.pieces) {
		g.fetch(next)
	}
	g.at = -1
}

// Finish sends the last piece back. What has been fetched and not used is forgotten.
func (g *HostRing) Finish() {
	if g == nil || g.dev == nil {
		return
	}
	g.GiveBack()
	g.next = 0
	for i := range g.slots {
		g.slots[i].holds = -1
	}
}

// Flush waits until the host's memory has what the device last made of it.
func (g *HostRing) Flush() error {
	if g == nil || g.dev == nil {
		return nil
	}
	for _, p := range g.pieces {
		if p.out != nil {
			g.dev.WaitEvents(p.out)
		}
	}
	return g.dev.Sync()
}
