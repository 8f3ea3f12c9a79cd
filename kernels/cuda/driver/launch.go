//go:build cuda

package driver

import (
	"fmt"
	"reflect"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Launch enqueues a kernel over grid blocks of threads. Parameters are tensors (their addresses), addresses, int and
// bool as int32, int64, float32, float64, and first of all, if there is one, the bytes of a struct. A launch of a
// repeated sequence that is equal to the last one in its place allocates nothing: nothing here keeps the name or a
// parameter.
func (c *Context) Launch(kernel string, grid [3]int, threads, shared int, params ...any) {
	f, ok := c.kernels[kernel]
	if !ok {
		panic("cuda: no kernel " + kernel)
	}
	if c.meta || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	c.params = c.params[:0]
	for _, p := range params {
		c.params = AppendParam(c.params, p)
	}
	c.enqueue(&call{f, grid, threads, shared, c.params})
}

// enqueue launches a kernel, or hands it to the repeated sequence.
func (c *Context) enqueue(k *call) {
	if c.Launched != nil {
		c.Launched[k.f.name] = true
	}
	if c.repeater.current != nil {
		if c.repeater.add(k) {
			c.launchPiece()
		}
		return
	}
	c.counts.Launches++
	c.Do(func() error {
		if c.profile != nil {
			return c.profile.time(k.f.name, k.run)
		}
		return k.run()
	})
}

// AppendParam lays a parameter out as C does.
func AppendParam(buf []byte, p any) []byte {
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

// Bytes is a struct as a parameter.
func Bytes[T any](s *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)) }
