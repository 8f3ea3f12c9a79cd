//go:build cuda

package driver

import (
	"math"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// Operands give their address, and a number or a tensor that a kernel would read otherwise is a bug.
func TestOperands(t *testing.T) {
	x := kernels.Tensor{Data: Pointer(4096), DType: kernels.F32}
	if At(x) != 4096 || AtType(x, kernels.F32) != 4096 || At(cu.DevicePtr(8)) != 8 || At(Array[int32](8).From(3)) !=
		20 {
		t.Error("wrong address of an operand")
	}
	if AtType(kernels.Tensor{}, kernels.BF16) != 0 || AtType(cu.DevicePtr(8), kernels.BF16) != 8 {
		t.Error("wrong address of an operand without a type")
	}
	if Int32(math.MaxInt32) != math.MaxInt32 || Int32(math.MinInt32) != math.MinInt32 || Flag(true) != 1 ||
		Flag(false) != 0 {
		t.Error("wrong number")
	}
	for name, wrong := range map[string]func(){
		"int32 above the largest":  func() { Int32(math.MaxInt32 + 1) },
		"int32 below the smallest": func() { Int32(math.MinInt32 - 1) },
		"tensor of another type":   func() { AtType(x, kernels.BF16) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s went to a kernel", name)
				}
			}()
			wrong()
		}()
	}
}

// A launcher's parameters cost no allocation.
func TestOperandsAllocateNothing(t *testing.T) {
	x, to := kernels.Tensor{Data: Pointer(4096), DType: kernels.F32}, []byte(nil)
	if n := testing.AllocsPerRun(100, func() {
		params := struct {
			out, in cu.DevicePtr
			rows    int32
		}{AtType(x, kernels.F32), At(cu.DevicePtr(8)), Int32(len(to))}
		to = append(to[:0], Bytes(&params)[:20]...)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if len(to) != 20 || *(*uint64)(unsafe.Pointer(&to[0])) != 4096 {
		t.Errorf("% x", to)
	}
}
