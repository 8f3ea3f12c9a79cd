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

// take reserves a piece.
func (r *ring) take(bytes int) (at int, err error) {
	if bytes > ringBytes {
		panic(fmt.Sprintf("cuda: %d bytes to stage", bytes))
	}
	if r.at+bytes > ringBytes {
		r.at = 0
		err = cu.Synchronize()
	}
	at = r.at
	r.at = (at + bytes + 255) &^ 255
	return at, err
}

// copy enqueues a copy of src to the card.
func (r *ring) copy(dst cu.DevicePtr, src []byte) error {
	at, err := r.take(len(src))
	if err != nil {
		return err
	}
	copy(r.host[at:], src)
	return cu.MemcpyHtoDAsync(dst, unsafe.Pointer(&r.host[at]), int64(len(src)), cu.NoStream)
}

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
		at, err := c.ring.take(len(src))
		if err != nil {
			return err
		}
		p = c.ring.base + cu.DevicePtr(at)
		copy(c.ring.host[at:], src)
		return cu.MemcpyHtoDAsync(p, unsafe.Pointer(&c.ring.host[at]), int64(len(src)), cu.NoStream)
	})
	return p
}
