//go:build cuda

package driver

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// What generated launchers make the parameters of kernels of (package launchgen).

// Operand is what a kernel's pointer to scalars takes: a tensor, memory of the card, or integers that were staged.
type Operand interface {
	kernels.Tensor | cu.DevicePtr | Array[int32]
}

// Array is the address of values on the card.
type Array[E any] cu.DevicePtr

// From is the array without its first n values.
func (a Array[E]) From(n int) Array[E] {
	var e E
	return a + Array[E](n*int(unsafe.Sizeof(e)))
}

// At is the address of an operand.
func At[P Operand](p P) cu.DevicePtr {
	switch p := any(p).(type) {
	case kernels.Tensor:
		return Address(p)
	case cu.DevicePtr:
		return p
	case Array[int32]:
		return cu.DevicePtr(p)
	}
	panic("cuda: an operand of no type that Operand lists")
}

// AtType is At. It panics on a tensor of another type than the kernel reads or writes.
func AtType[P Operand](p P, d kernels.DType) cu.DevicePtr {
	if t, ok := any(p).(kernels.Tensor); ok && t.DType != d && t.Data != nil {
		panic(fmt.Sprintf("cuda: a kernel's parameter is %s: it got %s", d, t))
	}
	return At(p)
}

// Int32 is a parameter int of a kernel. It panics on a number that an int32 cannot hold.
func Int32(n int) int32 {
	if int(int32(n)) != n {
		tooWide(n)
	}
	return int32(n)
}

// tooWide is apart, so that launchers stay small.
//
//go:noinline
func tooWide(n int) {
	panic(fmt.Sprintf("cuda: %d is not an int32: the kernel needs a wider parameter", n))
}

// Flag is a bool as kernels take it: 1 or 0.
func Flag(set bool) int {
	if set {
		return 1
	}
	return 0
}

// Bytes is a struct as a kernel's parameters.
func Bytes[T any](s *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)) }
