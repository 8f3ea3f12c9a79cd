//go:build cuda

package cuda

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
func (d *Device) Alloc(bytes int) []byte {
	d.counts.Allocations++
	var p cu.DevicePtr
	d.do(func() (err error) {
		if p, err = cu.MemAlloc(int64(bytes)); err != nil {
			return d.short(bytes, err)
		}
		return cu.MemsetD8(p, 0, int64(bytes))
	})
	d.owned = append(d.owned, allocation{p, bytes})
	return unsafe.Slice((*byte)(pointer(p)), bytes)
}

// short says of an allocation that failed how much memory was left.
func (d *Device) short(bytes int, err error) error {
	if free, _, unknown := cu.MemInfo(); unknown == nil && int64(bytes) > free {
		return kernels.OutOfMemory(bytes, int(free)).Err
	}
	return fmt.Errorf("%d MiB of GPU memory: %w", bytes>>20, err)
}

// release gives back what Alloc gave out after the first `keep` pieces.
func (d *Device) release(keep int) {
	d.do(func() error {
		err := cu.Synchronize()
		for _, p := range d.owned[keep:] {
			err = errors.Join(err, cu.MemFree(p.at))
		}
		d.owned = d.owned[:keep]
		return err
	})
}

// Available is the free memory of the card.
func (d *Device) Available() int {
	var free int64
	d.do(func() (err error) {
		free, _, err = cu.MemInfo()
		return err
	})
	return int(free)
}

// Counts is what the device was asked so far, and what it holds.
func (d *Device) Counts() kernels.Counts {
	n := d.counts
	n.Bytes = d.size
	for _, p := range d.owned {
		n.Bytes += p.bytes
	}
	return n
}

// Workspace is the size in bytes of the workspace.
func (d *Device) Workspace() int { return d.size }

// ReserveWorkspace makes the workspace as large as that.
func (d *Device) ReserveWorkspace(bytes int) {
	if bytes > d.size {
		d.grow(bytes)
	}
}

// workspace is memory of the card for one operation: the next one that asks gets the same.
func (d *Device) workspace(bytes int) cu.DevicePtr {
	switch {
	case bytes <= d.size:
	case d.meta:
		d.size = bytes
	default:
		d.grow(bytes + bytes/4)
	}
	return d.scratch
}

// grow replaces the workspace by a larger one.
func (d *Device) grow(bytes int) {
	d.counts.Allocations++
	d.do(func() (err error) {
		if d.scratch != 0 {
			if err := d.outgrow(d.scratch); err != nil {
				return err
			}
		}
		d.scratch, d.size = 0, 0
		if d.scratch, err = cu.MemAlloc(int64(bytes)); err != nil {
			return d.short(bytes, err)
		}
		d.size = bytes
		return nil
	})
}

// outgrow gives a workspace back once nothing names it.
func (d *Device) outgrow(p cu.DevicePtr) error {
	if d.repeater.current != nil {
		d.repeater.stale = append(d.repeater.stale, p)
		return nil
	}
	return cu.MemFree(p) // waits for what uses it
}

// metaDevice is a Device that makes no call of the driver: its operations ask for the workspaces that they would use.
type metaDevice struct {
	*Device
	of *Device // that it stands for
}

// Meta is a device that takes what this one takes. It has nothing but the workspace yet.
func (d *Device) Meta() kernels.Device {
	return metaDevice{&Device{
		def: d.def, context: d.context, name: d.name, admitted: d.admitted, kernels: d.kernels, ring: &ring{},
		repeater: &repeater{},
		size:     d.size, meta: true, plans: attentionPlans{}, maps: map[boxes]tensorMap{}, processors: d.processors,
		force: d.force, room: d.room,
	}, d}
}

// tried is after a trial on the card, which may have made its workspace larger.
func (d metaDevice) tried(err error) error {
	d.size = max(d.size, d.of.size)
	return err
}

// Attends asks the card, once for all devices that stand for it.
func (d metaDevice) Attends(a kernels.Attn) error { return d.tried(d.of.Attends(a)) }

// Recurs asks the card.
func (d metaDevice) Recurs(r kernels.Recurrence, delta bool) error {
	return d.tried(d.of.Recurs(r, delta))
}

// AttendsSparsely asks the card.
func (d metaDevice) AttendsSparsely(a kernels.Attn, x kernels.Index) error {
	return d.tried(d.of.AttendsSparsely(a, x))
}

// LearnsIndex asks the card.
func (d metaDevice) LearnsIndex(a kernels.Attn, x kernels.Index) error {
	return d.tried(d.of.LearnsIndex(a, x))
}

// IsMeta says that operations compute nothing.
func (d metaDevice) IsMeta() {}

// Alloc is addresses without memory.
func (d metaDevice) Alloc(bytes int) []byte {
	b := kernels.MetaBytes(d.Counts().Bytes-d.size, bytes)
	d.owned = append(d.owned, allocation{bytes: bytes})
	return b
}

// Read gives zeros.
func (d metaDevice) Read(dst []byte, _ kernels.Tensor) { clear(dst) }

// Write drops the values.
func (d metaDevice) Write(kernels.Tensor, []byte) {}

// Repeat carries body out.
func (d metaDevice) Repeat(_ string, body func()) { body() }

// Available is unknown.
func (d metaDevice) Available() int { return 0 }

// Close has nothing to give back.
func (d metaDevice) Close() error { return nil }
