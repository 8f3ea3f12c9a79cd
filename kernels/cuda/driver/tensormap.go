//go:build cuda

package driver

/*
#include <cuda.h>

// lockstepTensorMap describes bf16 matrices, so many bytes apart, for copies of 64 columns x `rows` rows into 128-byte
// swizzled shared memory.
static CUresult lockstepTensorMap(void *map, void *data, cuuint64_t cols, cuuint64_t height, cuuint64_t groups,
                                  cuuint64_t pitch, cuuint64_t apart, cuuint32_t rows) {
	CUtensorMap out;
	cuuint64_t dims[] = {cols, height, groups}, strides[] = {pitch, apart};
	cuuint32_t box[] = {64, rows, 1}, steps[] = {1, 1, 1};
	CUresult code = cuTensorMapEncodeTiled(&out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, dims, strides, box, steps,
		CU_TENSOR_MAP_INTERLEAVE_NONE,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	__builtin_memcpy(map, &out, sizeof out);
	return code;
}
*/
import "C"

import (
	"fmt"
	"unsafe"

	"lockstep/kernels"
)

// TensorMap is the driver's CUtensorMap.
type TensorMap [128]byte

// boxes is what a tensor map describes: matrices of bf16 for TMA copies of 64 columns and so many rows of one. Rows
// start at multiples of 16 bytes (see Vectors).
type boxes struct {
	data                 unsafe.Pointer // of the card
	cols, height, groups int
	pitch, apart         int // elements from a row to the next, and from a matrix to the next
	rows                 int // of a copy
}

// mostMaps bounds what a device keeps, some 200 bytes each.
const mostMaps = 1 << 14

// Boxes is the tensor map of a tensor's groups.
func (c *Context) Boxes(t kernels.Tensor, rows int) TensorMap {
	return c.tensorMap(boxes{t.Data, t.Cols, t.Rows, t.Groups, t.Stride, t.Rows * t.Stride, rows})
}

// GroupBoxes is the tensor map of t's rows as matrices for each group of g: one, or one a group where groups are
// interleaved.
func (c *Context) GroupBoxes(t kernels.Tensor, g *kernels.Groups, rows int) TensorMap {
	if g == nil || !g.Interleaved {
		return c.Boxes(t, rows)
	}
	return c.tensorMap(boxes{t.Data, t.Cols, t.Rows / g.Count, g.Count, t.Stride * g.Count, t.Stride, rows})
}

// tensorMap keeps maps: layers and steps ask for the same ones, and the driver takes longer to make one than the rest
// of a launch takes.
func (c *Context) tensorMap(b boxes) TensorMap {
	if m, ok := c.maps[b]; ok {
		return m
	}
	if len(c.maps) == mostMaps {
		clear(c.maps)
	}
	var m TensorMap
	c.Do(func() error {
		code := C.lockstepTensorMap(unsafe.Pointer(&m), b.data, C.cuuint64_t(b.cols), C.cuuint64_t(b.height),
			C.cuuint64_t(b.groups), C.cuuint64_t(2*b.pitch), C.cuuint64_t(2*b.apart),
			C.cuuint32_t(b.rows))
		if code != C.CUDA_SUCCESS {
			return fmt.Errorf("tensor map of %+v: %w", b, failure(code))
		}
		return nil
	})
	c.maps[b] = m
	return m
}
