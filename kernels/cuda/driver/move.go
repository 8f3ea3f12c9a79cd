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

// toCard enqueues a copy of a short piece of pinned memory to the card. A copy engine takes copies of all streams in
// one order: where weights or states come from the host, each by copies of hundreds of MiB, the pieces of every
// operation would wait behind them, and nothing would compute meanwhile. There a kernel reads the host's memory.
func (c *Context) toCard(dst cu.DevicePtr, host []byte) error {
	src := unsafe.Pointer(&host[0])
	if len(c.host) == 0 {
		return cu.MemcpyHtoDAsync(dst, src, int64(len(host)), cu.NoStream)
	}
	return c.move(dst, cu.DevicePtr(uintptr(src)), len(host))
}

// toHost is toCard the other way.
func (c *Context) toHost(host []byte, src cu.DevicePtr) error {
	dst := unsafe.Pointer(&host[0])
	if len(c.host) == 0 {
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
	k := call{c.kernels[Kernels[0]], [3]int{blocks, 1, 1}, moveThreads, 0, Bytes(&params)[:20]}
	return c.launch(&k)
}
