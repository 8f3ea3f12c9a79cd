package cpu

import (
	"errors"
	"fmt"
	"unsafe"

	"lockstep/kernels"
	"lockstep/kernels/meta"
)

// checkedBytes is the size from which an allocation first checks how much memory the system has left.
const checkedBytes = 64 << 20

// offHeap is the size from which memory is mapped instead of allocated on Go's heap. The heap grows to twice its live
// size before garbage is collected, so gigabytes of tensors there would allow gigabytes of garbage.
const offHeap = 1 << 20

// Alloc returns zeroed host memory, aligned to 64 bytes. It panics with a [kernels.Fault] if the system has less left,
// since the kernel would end the process later.
func (d *Device) Alloc(bytes int) []byte {
	d.bytes += bytes
	return d.reserve(bytes)
}

// Pin is Alloc: device and host have one memory. It is counted apart.
func (d *Device) Pin(bytes int) []byte {
	d.pinned += bytes
	return d.reserve(bytes)
}

func (d *Device) reserve(bytes int) []byte {
	if bytes >= checkedBytes {
		if have := d.Available(); have > 0 && bytes > have {
			panic(kernels.OutOfMemory(bytes, have))
		}
	}
	if bytes < offHeap {
		const align = 64
		b := make([]byte, bytes+align)
		off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (align - 1)
		b = b[off : off+bytes : off+bytes]
		d.small = append(d.small, b)
		return b
	}
	b, err := mapMemory(bytes)
	if err != nil {
		panic(kernels.Fault{Err: fmt.Errorf("%d MiB of memory: %w", bytes>>20, err)})
	}
	d.mapped = append(d.mapped, b)
	return b
}

// Host is the device itself.
func (d *Device) Host() kernels.Device { return d }

// Counts returns the bytes that Alloc and Pin have allocated.
func (d *Device) Counts() kernels.Counts { return kernels.Counts{Bytes: d.bytes, Pinned: d.pinned} }

// Meta is a device that counts the same bytes. Scratch memory of operations is small and not counted.
func (d *Device) Meta() kernels.Device { return meta.New(d.def, d.Spare()) }

// Close ends the device's threads and frees its memory: its tensors are invalid afterwards.
func (d *Device) Close() error {
	d.pool.close()
	var failed error
	for _, b := range d.mapped {
		failed = errors.Join(failed, unmapMemory(b))
	}
	d.mapped, d.small, d.bytes, d.pinned = nil, nil, 0, 0
	return failed
}
