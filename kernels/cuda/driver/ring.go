//go:build cuda

package driver

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"gorgonia.org/cu"
)

// ring is pinned host memory, and as much of the card's, for what the host tells operations: copies from it are
// enqueued like kernels and wait for nothing. A piece is written anew after ringBytes more, when everything enqueued is
// done.
type ring struct {
	host   []byte
	base   cu.DevicePtr
	at     int
	latest [][2]int // pieces that stage has put, where each begins and ends; the oldest one first
}

const ringBytes = 64 << 20

// mostLatest is how many pieces are held against what is staged: more than a layer has, forward and backward.
const mostLatest = 24

func newRing() (*ring, error) {
	r := &ring{}
	p, err := pinned(ringBytes)
	if err != nil {
		return nil, fmt.Errorf("%d MiB of pinned memory: %w", ringBytes>>20, err)
	}
	r.host = unsafe.Slice((*byte)(p), ringBytes)
	if r.base, err = cu.MemAlloc(ringBytes); err != nil {
		return nil, fmt.Errorf("%d MiB of GPU memory: %w", ringBytes>>20, err)
	}
	return r, nil
}

// put reserves a piece, fills it, and says where it begins.
func (r *ring) put(src []byte) (at int, err error) {
	if len(src) > ringBytes {
		panic(fmt.Sprintf("cuda: %d bytes to stage", len(src)))
	}
	if r.at+len(src) > ringBytes {
		r.at, r.latest = 0, r.latest[:0]
		err = cu.Synchronize()
	}
	at = r.at
	r.at = (at + len(src) + 255) &^ 255
	copy(r.host[at:], src)
	return at, err
}

// piece is what was put, on the host.
func (r *ring) piece(at, bytes int) []byte { return r.host[at : at+bytes] }

// stagedAt is where a piece lies that equals src, of pieces that begin and end at places of host.
func stagedAt(host []byte, pieces [][2]int, src []byte) (at int, yes bool) {
	for _, p := range slices.Backward(pieces) {
		if bytes.Equal(host[p[0]:p[1]], src) {
			return p[0], true
		}
	}
	return 0, false
}

// keep lets a piece that was put be found again.
func (r *ring) keep(at, bytes int) {
	if len(r.latest) == mostLatest {
		r.latest = slices.Delete(r.latest, 0, 1)
	}
	r.latest = append(r.latest, [2]int{at, at + bytes})
}

// close gives the memory back, when nothing is enqueued.
func (r *ring) close() error {
	return errors.Join(unpin(unsafe.Pointer(&r.host[0])), cu.MemFree(r.base))
}

// Stage copies values to the card, for the kernels of the operation that follows, which leave them as they were. Layers
// stage the same again and again: it is copied once, as the kernels around a copy wait for it.
func Stage[E any](c *Context, values []E) Array[E] {
	if len(values) == 0 {
		return Array[E](c.ring.base)
	}
	src := unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0])))
	return Array[E](c.stage(src))
}

func (c *Context) stage(src []byte) (p cu.DevicePtr) {
	if c.replay.current != nil {
		return c.replay.stage(src)
	}
	if at, yes := stagedAt(c.ring.host, c.ring.latest, src); yes {
		return c.ring.base + cu.DevicePtr(at)
	}
	c.Do(func() error {
		at, err := c.ring.put(src)
		c.ring.keep(at, len(src))
		p = c.ring.base + cu.DevicePtr(at)
		return errors.Join(err, c.toCard(p, c.ring.piece(at, len(src))))
	})
	return p
}
