//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// ring is pinned host memory, and as much of the card's, for what the host tells operations: copies from it are
// enqueued like kernels and wait for nothing. A piece is written anew after ringBytes more, when everything enqueued is
// done.
type ring struct {
	host []byte
	base cu.DevicePtr
	at   int
}

const ringBytes = 64 << 20

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
		r.at = 0
		err = cu.Synchronize()
	}
	at = r.at
	r.at = (at + len(src) + 255) &^ 255
	copy(r.host[at:], src)
	return at, err
}

// piece is what was put, on the host.
func (r *ring) piece(at, bytes int) []byte { return r.host[at : at+bytes] }

// close gives the memory back, when nothing is enqueued.
func (r *ring) close() error {
	return errors.Join(unpin(unsafe.Pointer(&r.host[0])), cu.MemFree(r.base))
}

// Stage copies values to the card, for the kernels of the operation that follows.
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
	c.Do(func() error {
		at, err := c.ring.put(src)
		p = c.ring.base + cu.DevicePtr(at)
		return errors.Join(err, c.toCard(p, c.ring.piece(at, len(src))))
	})
	return p
}
