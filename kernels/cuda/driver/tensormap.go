//go:build cuda

package driver

/*
#include <cuda.h>

// lockstepTensorMap describes matrices of elements of `size` bytes, so many bytes apart, for copies of `wide` columns x
// `rows` rows into shared memory, swizzled in rows of so many bytes, or not (0).
static CUresult lockstepTensorMap(void *map, void *data, int size, cuuint64_t cols, cuuint64_t height,
                                  cuuint64_t groups, cuuint64_t pitch, cuuint64_t apart, cuuint32_t wide,
                                  cuuint32_t rows, int swizzle) {
	CUtensorMap out;
	cuuint64_t dims[] = {cols, height, groups}, strides[] = {pitch, apart};
	cuuint32_t box[] = {wide, rows, 1}, steps[] = {1, 1, 1};
	CUtensorMapDataType type = size == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
		: size == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
	CUtensorMapSwizzle kind = swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
		: swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_NONE;
	CUresult code = cuTensorMapEncodeTiled(&out, type, 3, data, dims, strides, box, steps,
		CU_TENSOR_MAP_INTERLEAVE_NONE, kind, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
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

// boxes is what a tensor map describes: matrices for TMA copies of so many columns and rows of one. Rows start at
// multiples of 16 bytes (see Vectors).
type boxes struct {
	data                 unsafe.Pointer // of the card
	dtype                kernels.DType
	cols, height, groups int
	pitch, apart         int // elements from a row to the next, and from a matrix to the next
	wide, rows           int // of a copy
	swizzle              int // bytes of a swizzled row in shared memory; 0: none
}

// mostMaps bounds what a device keeps, some 200 bytes each.
const mostMaps = 1 << 14

// Boxes is the tensor map of the groups of a bf16 tensor for copies of 64 columns, as wgmma reads them.
func (c *Context) Boxes(t kernels.Tensor, rows int) TensorMap { return c.BoxesOf(t, 64, rows, 128) }

// BoxesOf is the tensor map of a tensor's groups for copies of `wide` columns, swizzled in rows of 128, 64 or 32 bytes,
// or not (0).
func (c *Context) BoxesOf(t kernels.Tensor, wide, rows, swizzle int) TensorMap {
	return c.tensorMap(boxes{t.Data, t.DType, t.Cols, t.Rows, t.Groups, t.Stride, t.Rows * t.Stride, wide, rows,
		swizzle})
}

// GroupBoxes is the tensor map of t's rows as matrices for each group of g: one, or one a group where groups are
// interleaved.
func (c *Context) GroupBoxes(t kernels.Tensor, g *kernels.Groups, rows int) TensorMap {
	if g == nil || !g.Interleaved {
		return c.Boxes(t, rows)
	}
	return c.tensorMap(boxes{t.Data, t.DType, t.Cols, t.Rows / g.Count, g.Count, t.Stride * g.Count, t.Stride, 64,
		rows, 128})
}

// HeadBoxes is the tensor map of rows of so many heads as matrices [heads, columns] for copies of `wide` columns and
// `rows` heads, swizzled in rows of so many bytes; behind a row's last head there are zeros.
func (c *Context) HeadBoxes(t kernels.Tensor, heads, wide, rows, swizzle int) TensorMap {
	cols := t.Cols / heads
	return c.tensorMap(boxes{t.Data, t.DType, cols, heads, t.Rows, cols, t.Stride, wide, rows, swizzle})
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
	size := b.dtype.Size()
	c.Do(func() error {
		code := C.lockstepTensorMap(unsafe.Pointer(&m), b.data, C.int(size), C.cuuint64_t(b.cols),
			C.cuuint64_t(b.height), C.cuuint64_t(b.groups), C.cuuint64_t(size*b.pitch), C.cuuint64_t(size*b.apart),
			C.cuuint32_t(b.wide), C.cuuint32_t(b.rows), C.int(b.swizzle))
		if code != C.CUDA_SUCCESS {
			return fmt.Errorf("tensor map of %+v: %w", b, failure(code))
		}
		return nil
	})
	c.maps[b] = m
	return m
}
