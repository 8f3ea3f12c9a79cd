package cpu

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"lockstep/kernels"
	"lockstep/kernels/meta"
)

// looked is how much memory an allocation asks for before the system is asked how much it has.
const looked = 64 << 20

// offHeap is how much memory is mapped instead of made. Go's heap grows to twice what is alive before garbage is
// collected: gigabytes of tensors there would let as much garbage pile up.
const offHeap = 1 << 20

// Alloc is cleared host memory, aligned to 64 bytes. More than the system has left is a [kernels.Fault]: the system
// would end the process.
func (d *Device) Alloc(bytes int) []byte {
	if bytes >= looked {
		if have := d.Available(); have > 0 && bytes > have {
			panic(kernels.OutOfMemory(bytes, have))
		}
	}
	d.bytes += bytes
	if bytes < offHeap {
		const align = 64
		b := make([]byte, bytes+align)
		off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (align - 1)
		b = b[off : off+bytes : off+bytes]
		d.small = append(d.small, b)
		return b
	}
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(kernels.Fault{Err: fmt.Errorf("%d MiB of memory: %w", bytes>>20, err)})
	}
	d.mapped = append(d.mapped, b)
	return b
}

// Counts has the bytes that Alloc handed out.
func (d *Device) Counts() kernels.Counts { return kernels.Counts{Bytes: d.bytes} }

// Meta is a device that takes what this one takes. What operations make for themselves is Go's and small.
func (d *Device) Meta() kernels.Device { return meta.New(d.def, d.Spare()) }

// Close ends the device's threads and gives its memory back: its tensors are no more.
func (d *Device) Close() error {
	d.pool.close()
	var failed error
	for _, b := range d.mapped {
		failed = errors.Join(failed, unix.Munmap(b))
	}
	d.mapped, d.small, d.bytes = nil, nil, 0
	return failed
}
