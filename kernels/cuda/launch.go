//go:build cuda

package cuda

import (
	"fmt"
	"reflect"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// launch enqueues a kernel over grid blocks of threads. Parameters are tensors (their addresses), addresses, int and
// bool as int32, int64, float32, float64, and first of all, if there is one, the bytes of a struct. A launch of a
// repeated sequence that is equal to the last one in its place allocates nothing: nothing here keeps the name or a
// parameter.
func (d *Device) launch(kernel string, grid [3]int, threads, shared int, params ...any) {
	f, ok := d.kernels[kernel]
	if !ok {
		panic("cuda: no kernel " + kernel)
	}
	if d.meta || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	d.params = d.params[:0]
	for _, p := range params {
		d.params = appendParam(d.params, p)
	}
	d.enqueue(&call{f, grid, threads, shared, d.params})
}

// enqueue launches a kernel, or hands it to the repeated sequence.
func (d *Device) enqueue(c *call) {
	if d.launched != nil {
		d.launched[c.f.name] = true
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
			return d.profile.time(c.f.name, c.run)
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
	panic("cuda: parameter of type " + reflect.TypeOf(p).String()) // fmt would keep p, and every parameter be allocated
}

func appendValue[E any](buf []byte, v E) []byte {
	size := int(unsafe.Sizeof(v))
	for len(buf)%size != 0 {
		buf = append(buf, 0)
	}
	return append(buf, unsafe.Slice((*byte)(unsafe.Pointer(&v)), size)...)
}

// bytesOf is a struct as a parameter.
func bytesOf[T any](s *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)) }

// blocks is how many pieces of a size cover n.
func blocks(n, size int) int { return (n + size - 1) / size }

// suffix names the variant of a kernel for a storage type.
func suffix(t kernels.Tensor) string {
	if t.DType == kernels.BF16 {
		return "_bf16"
	}
	return "_f32"
}
