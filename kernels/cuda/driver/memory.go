//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// allocation is a piece of the card's memory, in bytes.
type allocation struct {
	at    cu.DevicePtr
	bytes int
}

// Alloc is cleared memory of the card.
func (c *Context) Alloc(bytes int) []byte {
	c.counts.Allocations++
	var p cu.DevicePtr
	c.Do(func() (err error) {
		if p, err = cu.MemAlloc(int64(bytes)); err != nil {
			return c.short(bytes, err)
		}
		return cu.MemsetD8(p, 0, int64(bytes))
	})
	c.owned = append(c.owned, allocation{p, bytes})
	return unsafe.Slice((*byte)(Pointer(p)), bytes)
}

// short says of an allocation that failed how much memory was left.
func (c *Context) short(bytes int, err error) error {
	if free, _, unknown := cu.MemInfo(); unknown == nil && int64(bytes) > free {
		return kernels.OutOfMemory(bytes, int(free)).Err
	}
	return fmt.Errorf("%d MiB of GPU memory: %w", bytes>>20, err)
}

// Held is how many pieces Alloc has given out.
func (c *Context) Held() int { return len(c.owned) }

// Release gives back what Alloc gave out after the first `keep` pieces.
func (c *Context) Release(keep int) {
	c.Do(func() error {
		err := cu.Synchronize()
		for _, p := range c.owned[keep:] {
			err = errors.Join(err, cu.MemFree(p.at))
		}
		c.owned = c.owned[:keep]
		return err
	})
}

// Available is the free memory of the card.
func (c *Context) Available() int {
	var free int64
	c.Do(func() (err error) {
		free, _, err = cu.MemInfo()
		return err
	})
	return int(free)
}

// Counts is what the device was asked so far, and what it holds.
func (c *Context) Counts() kernels.Counts {
	n := c.counts
	n.Bytes, n.Graphs = c.size, c.replay.captured
	for _, p := range c.owned {
		n.Bytes += p.bytes
	}
	return n
}

// Workspace is the size in bytes of the workspace.
func (c *Context) Workspace() int { return c.size }

// ReserveWorkspace makes the workspace as large as that.
func (c *Context) ReserveWorkspace(bytes int) {
	if bytes > c.size {
		c.grow(bytes)
	}
}

// Scratch is memory of the card for one operation: the next one that asks gets the same.
func (c *Context) Scratch(bytes int) cu.DevicePtr {
	switch {
	case bytes <= c.size:
	case c.meta:
		c.size = bytes
	default:
		c.grow(bytes + bytes/4)
	}
	return c.scratch
}

// grow replaces the workspace by a larger one.
func (c *Context) grow(bytes int) {
	c.counts.Allocations++
	c.Do(func() (err error) {
		if c.scratch != 0 {
			if err := c.outgrow(c.scratch); err != nil {
				return err
			}
		}
		c.scratch, c.size = 0, 0
		if c.scratch, err = cu.MemAlloc(int64(bytes)); err != nil {
			return c.short(bytes, err)
		}
		c.size = bytes
		return nil
	})
}

// outgrow gives a workspace back once nothing names it.
func (c *Context) outgrow(p cu.DevicePtr) error {
	if c.replay.current != nil {
		c.replay.stale = append(c.replay.stale, p)
		return nil
	}
	return cu.MemFree(p) // waits for what uses it
}

// Floats splits the workspace of an operation into pieces of so many fp32 numbers, each aligned to 256 bytes.
func (c *Context) Floats(counts ...int) []cu.DevicePtr {
	size, parts := 0, make([]cu.DevicePtr, len(counts))
	for i, n := range counts {
		parts[i] = cu.DevicePtr(size)
		size += (4*n + 255) &^ 255
	}
	base := c.Scratch(size)
	for i := range parts {
		parts[i] += base
	}
	return parts
}

// Reserve counts an allocation without making it, and gives addresses for it: Alloc of a meta context.
func (c *Context) Reserve(bytes int) []byte {
	b := kernels.MetaBytes(c.Counts().Bytes-c.size, bytes)
	c.owned = append(c.owned, allocation{bytes: bytes})
	return b
}

// Grown is after work by another context of the same card, which may have made its workspace larger: this one, a meta
// context, counts as much.
func (c *Context) Grown(bytes int) { c.size = max(c.size, bytes) }
