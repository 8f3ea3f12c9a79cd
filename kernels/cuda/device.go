//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Device is one GPU. Its operations are enqueued on one stream and return before they are done. A failure of the driver
// is a [kernels.Fault].
type Device struct {
	def      kernels.Definition
	context  cu.CUContext
	name     string
	admitted []string // the card's units that equal the definition
	// of attention, sparse attention and recurrences that were tried: nil where they equal the definition
	shapes   map[string]error
	kernels  map[string]*function
	ring     *ring
	repeater *repeater
	counts   kernels.Counts
	owned    []allocation   // what Alloc gave out
	params   []byte         // of the launch that is made
	scratch  cu.DevicePtr   // workspace of one operation
	size     int            // bytes of scratch
	meta     bool           // counts memory and computes nothing
	profile  *profile       // nil: off
	plans    attentionPlans // of attention
	maps     map[boxes]tensorMap

	processors int // multiprocessors of the card
	// the path of matrix products, and "portable" of attention too, for tests; "" chooses by shape
	force string
	// bytes of the largest tensor in a call of sparse attention, about; a test makes it small
	room     int
	launched map[string]bool // kernels that have run, for tests; nil: not kept
}

// maxShared is the shared memory of a block on Hopper and Blackwell.
const maxShared = 227 << 10

var (
	_ kernels.Device   = (*Device)(nil)
	_ kernels.DeltaNet = (*Device)(nil)
	_ kernels.Mamba    = (*Device)(nil)

	_ kernels.SparseAttention = (*Device)(nil)
	_ kernels.IndexLearning   = (*Device)(nil)
	_ kernels.Rounder         = (*Device)(nil)
	_ kernels.Planner         = (*Device)(nil)
	_ kernels.Workspacer      = (*Device)(nil)
)

// New opens a GPU. It fails on a definition that the device does not implement and where there is no card or driver.
func New(def kernels.Definition, ordinal int) (*Device, error) {
	if err := def.Validate(); err != nil {
		return nil, err
	}
	if def.Dot != kernels.DotTC16 {
		return nil, fmt.Errorf("dot mode %q: the GPU computes %q, and so does the CPU where that is asked for", def.Dot,
			kernels.DotTC16)
	}
	card, err := cu.GetDevice(ordinal)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	d := &Device{def: def, shapes: map[string]error{}, room: 256 << 20, plans: attentionPlans{},
		maps: map[boxes]tensorMap{}}
	if d.context, err = card.RetainPrimaryCtx(); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	major, minor, err := card.ComputeCapability()
	if err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	if major < 9 {
		return nil, fmt.Errorf("GPU %d has compute capability %d.%d: want 9.0 (Hopper) or later", ordinal, major, minor)
	}
	if d.processors, err = card.Attribute(cu.MultiprocessorCount); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	if d.name, err = card.Name(); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	if err := d.attempt(func() error { return d.prepare(major, minor) }); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	return d, nil
}

// prepare loads the kernels, makes the staging ring and tests the card.
func (d *Device) prepare(major, minor int) (err error) {
	if d.kernels, err = loadKernels(fmt.Sprintf("sm_%d%da", major, minor), d.def); err != nil {
		return err
	}
	if d.ring, err = newRing(); err != nil {
		return err
	}
	if d.repeater, err = newRepeater(); err != nil {
		return err
	}
	return d.admit()
}

// attempt runs body with the context current on its thread.
func (d *Device) attempt(body func() error) error {
	if d.meta {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(d.context); err != nil {
		return err
	}
	return body()
}

// do is attempt for operations, which have no error to return.
func (d *Device) do(body func() error) {
	if err := d.attempt(body); err != nil {
		panic(kernels.Fault{Err: err})
	}
}

// Name is "cuda" with the name of the card and what it was admitted with.
func (d *Device) Name() string {
	return fmt.Sprintf("cuda (%s; equal to the definition: %s)", d.name, strings.Join(d.admitted, ", "))
}

// Definition is what the device computes by.
func (d *Device) Definition() kernels.Definition { return d.def }

// pointer is an address of the card in the type of a host pointer; it is never followed here.
func pointer(p cu.DevicePtr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func address(t kernels.Tensor) cu.DevicePtr { return cu.DevicePtr(uintptr(t.Data)) }

// Spare is 512 MiB: rows of logits that fill the card with tiles.
func (d *Device) Spare() int { return 512 << 20 }

// Write copies raw elements into a contiguous tensor.
func (d *Device) Write(dst kernels.Tensor, src []byte) {
	if len(src) != dst.Bytes() || !dst.Contiguous() {
		panic(fmt.Sprintf("cuda: %d bytes into %s", len(src), dst))
	}
	switch {
	case len(src) == 0:
	case d.repeater.current != nil:
		from := dst
		from.Data = pointer(d.repeater.stage(src))
		d.Copy(dst, from)
	case len(src) <= ringBytes/8: // without waiting for what is enqueued
		d.do(func() error { return d.ring.copy(address(dst), src) })
	default:
		d.counts.Waits++
		d.do(func() error { return cu.MemcpyHtoD(address(dst), unsafe.Pointer(&src[0]), int64(len(src))) })
	}
}

// Read copies raw elements out of a contiguous tensor, after everything enqueued before.
func (d *Device) Read(dst []byte, src kernels.Tensor) {
	if len(dst) != src.Bytes() || !src.Contiguous() {
		panic(fmt.Sprintf("cuda: %s into %d bytes", src, len(dst)))
	}
	d.mustWait()
	if len(dst) > 0 {
		d.do(func() error { return cu.MemcpyDtoH(unsafe.Pointer(&dst[0]), address(src), int64(len(dst))) })
	}
}

// Sync waits for everything enqueued.
func (d *Device) Sync() error {
	d.mustWait()
	return d.attempt(cu.Synchronize)
}

// mustWait counts a wait of the host, which a repeated sequence cannot hold.
func (d *Device) mustWait() {
	if d.repeater.current != nil {
		panic("cuda: a repeated sequence waits for the device")
	}
	d.counts.Waits++
}

// Close waits for everything enqueued and gives the card's memory back.
func (d *Device) Close() error {
	return d.attempt(func() error {
		err := errors.Join(cu.Synchronize(), d.repeater.close(), d.ring.close())
		for _, p := range append(d.owned, allocation{d.scratch, d.size}) {
			if p.at != 0 {
				err = errors.Join(err, cu.MemFree(p.at))
			}
		}
		d.owned, d.scratch, d.size = nil, 0, 0
		return err
	})
}
