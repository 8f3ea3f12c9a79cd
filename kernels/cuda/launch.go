//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// launch enqueues a kernel over grid blocks of threads. Parameters are tensors (their addresses), addresses, int and bool as int32, int64, float32, float64,
// and first of all, if there is one, the bytes of a struct.
func (d *Device) launch(kernel string, grid [3]int, threads, shared int, params ...any) {
	f, ok := d.kernels[kernel]
	if !ok {
		panic("cuda: no kernel " + kernel)
	}
	if grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	buf := make([]byte, 0, f.size)
	for _, p := range params {
		buf = appendParam(buf, p)
	}
	d.enqueue(call{kernel, f, grid, threads, shared, buf})
}

// enqueue launches a kernel, or keeps it for the graph of a repeated sequence.
func (d *Device) enqueue(c call) {
	if d.launched != nil {
		d.launched[c.kernel] = true
	}
	if d.repeater.current != nil {
		if d.repeater.add(c) {
			d.launchPiece()
		}
		return
	}
	d.counts.Launches++
	d.do(func() error {
		if d.profile != nil {
			return d.profile.time(c.kernel, c.run)
		}
		return c.run()
	})
}

// appendParam lays a parameter out as C does.
func appendParam(buf []byte, p any) []byte {
	switch p := p.(type) {
	case kernels.Tensor:
		return appendValue(buf, uint64(uintptr(p.Data)))
	case cu.DevicePtr:
		return appendValue(buf, uint64(p))
	case int:
		if int(int32(p)) != p {
			panic(fmt.Sprintf("cuda: %d is no int32: the kernel needs a wider parameter", p))
		}
		return appendValue(buf, int32(p))
	case int64:
		return appendValue(buf, p)
	case float32:
		return appendValue(buf, p)
	case float64:
		return appendValue(buf, p)
	case []byte:
		return append(buf, p...)
	case bool:
		v := int32(0)
		if p {
			v = 1
		}
		return appendValue(buf, v)
	}
	panic(fmt.Sprintf("cuda: parameter of type %T", p))
}

func appendValue[E any](buf []byte, v E) []byte {
	size := int(unsafe.Sizeof(v))
	for len(buf)%size != 0 {
		buf = append(buf, 0)
	}
	return append(buf, unsafe.Slice((*byte)(unsafe.Pointer(&v)), size)...)
}

// blocks is how many pieces of a size cover n.
func blocks(n, size int) int { return (n + size - 1) / size }

// suffix names the variant of a kernel for a storage type.
func suffix(t kernels.Tensor) string {
	if t.DType == kernels.BF16 {
		return "_bf16"
	}
	return "_f32"
}
