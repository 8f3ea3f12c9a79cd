//go:build cuda

package driver

import (
	"embed"
	"unsafe"

	"gorgonia.org/cu"
)

// moveSource is the kernel by which the driver moves short pieces.
//
//go:embed move.cu
var moveSource embed.FS

// withMove adds it to the sources of operations.
func withMove(sources Sources) Sources { return append(Sources{moveSource}, sources...) }

// Kernels are the names of the kernels that the driver launches itself.
var Kernels = []string{"move_bytes"}

// copiesMuch tells whether short pieces would wait for copy engines, which take copies of all streams in one order:
// weights or states come from the host, hundreds of MiB each, or rows from other cards. Nothing would compute
// meanwhile, so a kernel moves the pieces.
func (c *Context) copiesMuch() bool { return len(c.host) > 0 || c.transfers.made > 0 }

// toCard enqueues a copy of a short piece of pinned memory to the card.
func (c *Context) toCard(dst cu.DevicePtr, host []byte) error {
	src := unsafe.Pointer(&host[0])
	if !c.copiesMuch() {
		return cu.MemcpyHtoDAsync(dst, src, int64(len(host)), cu.NoStream)
	}
	return c.move(dst, cu.DevicePtr(uintptr(src)), len(host))
}

// toHost is toCard the other way.
func (c *Context) toHost(host []byte, src cu.DevicePtr) error {
	dst := unsafe.Pointer(&host[0])
	if !c.copiesMuch() {
		return cu.MemcpyDtoHAsync(dst, src, int64(len(host)), cu.NoStream)
	}
	return c.move(cu.DevicePtr(uintptr(dst)), src, len(host))
}

// moveThreads are those of a block of move_bytes, each with so many bytes.
const moveThreads, moveBytes = 128, 16

func (c *Context) move(dst, src cu.DevicePtr, bytes int) error {
	params := struct {
		dst, src cu.DevicePtr
		bytes    int32
	}{dst, src, int32(bytes)}
	blocks := (bytes + moveThreads*moveBytes - 1) / (moveThreads * moveBytes)
	k := call{c.kernels[Kernels[0]], [3]int{blocks, 1, 1}, moveThreads, 0, Bytes(&params)[:20], false}
	return c.launch(&k)
}
