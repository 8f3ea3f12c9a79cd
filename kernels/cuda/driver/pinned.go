//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Pin is cleared host memory that the copy engines of all cards reach. Its pages are taken before they are pinned, by
// several threads: a first touch costs 0.4 s for a GiB on virtual machines, and the driver has one thread.
func (c *Context) Pin(bytes int) []byte {
	at := kernels.MetaPinned + c.counts.Pinned
	c.counts.Pinned += bytes
	if c.meta {
		return kernels.MetaBytes(at, bytes)
	}
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(kernels.Fault{Err: fmt.Errorf("%d MiB of host memory: %w", bytes>>20, err)})
	}
	touch(b)
	c.Do(func() error {
		if err := register(b); err != nil {
			return fmt.Errorf("%d MiB of pinned memory: %w", bytes>>20, err)
		}
		return nil
	})
	c.host = append(c.host, pinnedHost{bytes: b})
	pins.Lock()
	pins.list = append(pins.list, b)
	pins.Unlock()
	return b
}

// pins is the memory of Pin of all contexts: each card copies from that of the others too.
var pins struct {
	sync.Mutex
	list [][]byte
}

// pinnedHost is memory of Pin, with streams of its copies by this card, each made when it is first needed.
type pinnedHost struct {
	bytes    []byte
	to, from *cu.Stream
	lent     bool // another context pinned it, and gives it back
}

// holds tells whether a tensor lies in some memory.
func holds(b []byte, t kernels.Tensor) bool {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return uintptr(t.Data) >= from && uintptr(t.Data) < from+uintptr(len(b))
}

// close gives the memory back, when nothing is enqueued.
func (h *pinnedHost) close() (err error) {
	for _, s := range []*cu.Stream{h.to, h.from} {
		if s != nil {
			err = errors.Join(err, s.Destroy())
		}
	}
	if h.lent {
		return err
	}
	pins.Lock()
	pins.list = slices.DeleteFunc(pins.list, func(b []byte) bool { return &b[0] == &h.bytes[0] })
	pins.Unlock()
	return errors.Join(err, unregister(h.bytes))
}

// mostTouching is how many threads take pages at once; more wait for the kernel's locks.
const mostTouching = 16

// touch takes all pages of memory.
func touch(b []byte) {
	page, threads := os.Getpagesize(), min(runtime.NumCPU(), mostTouching)
	each := (len(b)/threads + page) / page * page
	var all sync.WaitGroup
	for from := 0; from < len(b); from += each {
		all.Go(func() {
			for i := from; i < min(from+each, len(b)); i += page {
				b[i] = 0
			}
		})
	}
	all.Wait()
}

// register pins memory for all contexts.
func register(b []byte) error {
	return registered(unsafe.Pointer(unsafe.SliceData(b)), len(b))
}

// unregister gives memory of Pin back.
func unregister(b []byte) error {
	if err := unregistered(unsafe.Pointer(unsafe.SliceData(b))); err != nil {
		return err
	}
	return unix.Munmap(b)
}

// pinnedWith is the memory of Pin that a tensor lies in, of any context; nil: none.
func (c *Context) pinnedWith(t kernels.Tensor) *pinnedHost {
	for i := range c.host {
		if holds(c.host[i].bytes, t) {
			return &c.host[i]
		}
	}
	pins.Lock()
	defer pins.Unlock()
	for _, b := range pins.list {
		if holds(b, t) {
			c.host = append(c.host, pinnedHost{bytes: b, lent: true})
			return &c.host[len(c.host)-1]
		}
	}
	return nil
}
