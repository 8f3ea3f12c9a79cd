//go:build cuda

package driver

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Context is one GPU: its CUDA context and default stream, the compiled kernels, memory, staging buffers and graphs.
// Kernels are enqueued on the stream and run later. A failure of the driver is a [kernels.Fault].
type Context struct {
	Def        kernels.Definition // by which the kernels are compiled
	Processors int                // multiprocessors of the card

	// Path forces the variant of matrix products, and with "portable" also that of attention. "" chooses by shape. The
	// self-test and tests set it.
	Path string
	// ChunkBytes is about how large the intermediate tensors of a call of attention may be. Tests make it small.
	ChunkBytes int
	// Few is what FewBytes returns. Tests set it to 0: copy engines bring what exchanges move.
	Few int
	// Launched is the names of the kernels that have run. Tests set it; nil: not recorded.
	Launched map[string]bool

	card      cu.Device
	context   cu.CUContext
	name      string
	arch      string // sm_90a
	sources   Sources
	kernels   map[string]*function
	ring      *ring
	replay    *graphReplay
	transfers transfers
	counts    kernels.Counts
	owned     []allocation // what Alloc gave out
	host      []pinnedHost // what Pin gave out
	params    []byte       // of the current launch
	early     bool         // the next launch is
	scratch   cu.DevicePtr // workspace of one operation
	size      int          // bytes of scratch
	meta      bool         // counts memory and computes nothing
	profile   *profile     // nil: off
	maps      map[boxes]TensorMap
}

// MaxShared is the shared memory of a block on Hopper and Blackwell, in bytes.
const MaxShared = 227 << 10

// Open opens a GPU and loads the kernels of the sources, compiled for a definition. It fails where there is no card or
// driver.
func Open(def kernels.Definition, ordinal int, sources Sources) (*Context, error) {
	card, err := cu.GetDevice(ordinal)
	if err != nil {
		return nil, err
	}
	c := &Context{card: card, Def: def, ChunkBytes: 256 << 20, Few: fewBytes,
		sources: withMove(sources), maps: map[boxes]TensorMap{}}
	if c.context, err = card.RetainPrimaryCtx(); err != nil {
		return nil, err
	}
	major, minor, err := card.ComputeCapability()
	if err != nil {
		return nil, err
	}
	if major < 9 {
		return nil, fmt.Errorf("compute capability %d.%d: want 9.0 (Hopper) or later", major, minor)
	}
	c.arch = fmt.Sprintf("sm_%d%da", major, minor)
	if c.Processors, err = card.Attribute(cu.MultiprocessorCount); err != nil {
		return nil, err
	}
	if c.name, err = card.Name(); err != nil {
		return nil, err
	}
	return c, c.Attempt(c.prepare)
}

// prepare loads the kernels and allocates the staging buffers.
func (c *Context) prepare() (err error) {
	if c.kernels, err = loadKernels(c.sources, c.arch, c.Def); err != nil {
		return err
	}
	if c.ring, err = newRing(); err != nil {
		return err
	}
	c.replay, err = newGraphReplay()
	return err
}

// Meta is a context of the same card that counts memory and launches nothing. It starts with a workspace of the same
// size.
func (c *Context) Meta() *Context {
	return &Context{
		Def: c.Def, Processors: c.Processors, Path: c.Path, ChunkBytes: c.ChunkBytes, context: c.context, name: c.name,
		arch: c.arch, sources: c.sources, kernels: c.kernels, ring: &ring{}, replay: &graphReplay{}, size: c.size,
		meta: true, maps: map[boxes]TensorMap{},
	}
}

// Attempt runs body with the context current on its thread.
func (c *Context) Attempt(body func() error) error {
	if c.meta {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(c.context); err != nil {
		return err
	}
	return body()
}

// Do is Attempt for operations, which have no error to return.
func (c *Context) Do(body func() error) {
	if err := c.Attempt(body); err != nil {
		panic(kernels.Fault{Err: err})
	}
}

// Driver is the context itself: a device that embeds it has this method too.
func (c *Context) Driver() *Context { return c }

// CardName is the name of the card.
func (c *Context) CardName() string { return c.name }

// Handle is the CUDA context. All contexts of one GPU in this process share it, and its stream.
func (c *Context) Handle() cu.CUContext { return c.context }

// Has reports whether a kernel was compiled for this card.
func (c *Context) Has(kernel string) bool { return c.kernels[kernel] != nil }

// Definition is what the device computes by.
func (c *Context) Definition() kernels.Definition { return c.Def }

// Pointer is an address of the card in the type of a host pointer; it is never followed here.
func Pointer(p cu.DevicePtr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// Address is where a tensor begins on the card.
func Address(t kernels.Tensor) cu.DevicePtr { return cu.DevicePtr(uintptr(t.Data)) }

// Recording reports whether the body of a repeated sequence runs.
func (c *Context) Recording() bool { return c.replay.current != nil }

// Write copies raw elements into a contiguous tensor. It is not for the body of a repeated sequence, which has to copy
// what it stages by a kernel.
func (c *Context) Write(dst kernels.Tensor, src []byte) {
	if len(src) != dst.Bytes() || !dst.Contiguous() {
		panic(fmt.Sprintf("cuda: %d bytes into %s", len(src), dst))
	}
	switch {
	case len(src) == 0:
	case len(src) <= ringBytes/8: // without waiting for what is enqueued
		c.Do(func() error {
			at, err := c.ring.put(src)
			return errors.Join(err, c.toCard(Address(dst), c.ring.piece(at, len(src))))
		})
	default:
		c.counts.Waits++
		c.Do(func() error { return cu.MemcpyHtoD(Address(dst), unsafe.Pointer(&src[0]), int64(len(src))) })
	}
}

// Read copies raw elements out of a contiguous tensor, after everything enqueued before.
func (c *Context) Read(dst []byte, src kernels.Tensor) {
	if len(dst) != src.Bytes() || !src.Contiguous() {
		panic(fmt.Sprintf("cuda: %s into %d bytes", src, len(dst)))
	}
	c.mustWait()
	if len(dst) > 0 {
		c.Do(func() error { return cu.MemcpyDtoH(unsafe.Pointer(&dst[0]), Address(src), int64(len(dst))) })
	}
}

// Wait is Sync that is not counted, for measurements.
func (c *Context) Wait() { c.Do(cu.Synchronize) }

// Sync waits for everything enqueued.
func (c *Context) Sync() error {
	c.mustWait()
	return c.Attempt(cu.Synchronize)
}

// mustWait counts a wait of the host, which a repeated sequence cannot hold.
func (c *Context) mustWait() {
	if c.Recording() {
		panic("cuda: a repeated sequence waits for the device")
	}
	c.counts.Waits++
}

// Close waits for everything enqueued and gives the card's memory back.
func (c *Context) Close() error {
	return c.Attempt(func() error {
		err := errors.Join(cu.Synchronize(), c.transfers.close(), c.replay.close(), c.ring.close())
		for _, p := range append(c.owned, allocation{c.scratch, c.size}) {
			if p.at != 0 {
				err = errors.Join(err, cu.MemFree(p.at))
			}
		}
		for _, h := range c.host {
			err = errors.Join(err, h.close())
		}
		c.owned, c.host, c.scratch, c.size = nil, nil, 0, 0
		return err
	})
}
