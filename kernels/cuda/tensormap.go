//go:build cuda

package cuda

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

// tensorMap is the driver's CUtensorMap.
type tensorMap [128]byte

// boxes is what a tensor map describes: matrices of bf16 for TMA copies of 64 columns and so many rows of one. Rows
// start at multiples of 16 bytes (see vectors).
type boxes struct {
	data                 unsafe.Pointer // of the card
	cols, height, groups int
	pitch, apart         int // elements from a row to the next, and from a matrix to the next
	rows                 int // of a copy
}

// mostMaps bounds what a device keeps, some 200 bytes each.
const mostMaps = 1 << 14

// boxes is the map of a tensor's groups.
func (d *Device) boxes(t kernels.Tensor, rows int) tensorMap {
	return d.tensorMap(boxes{t.Data, t.Cols, t.Rows, t.Groups, t.Stride, t.Rows * t.Stride, rows})
}

// boxesOf is the map of t's rows as matrices for each group of g: one, or one a group where groups are interleaved.
func (d *Device) boxesOf(t kernels.Tensor, g *kernels.Groups, rows int) tensorMap {
	if g == nil || !g.Interleaved {
		return d.boxes(t, rows)
	}
	return d.tensorMap(boxes{t.Data, t.Cols, t.Rows / g.Count, g.Count, t.Stride * g.Count, t.Stride, rows})
}

// tensorMap keeps maps: layers and steps ask for the same ones, and the driver takes longer to make one than the rest
// of a launch takes.
func (d *Device) tensorMap(b boxes) tensorMap {
	if m, ok := d.maps[b]; ok {
		return m
	}
	if len(d.maps) == mostMaps {
		clear(d.maps)
	}
	var m tensorMap
	d.do(func() error {
		code := C.lockstepTensorMap(unsafe.Pointer(&m), b.data, C.cuuint64_t(b.cols), C.cuuint64_t(b.height),
			C.cuuint64_t(b.groups), C.cuuint64_t(2*b.pitch), C.cuuint64_t(2*b.apart),
			C.cuuint32_t(b.rows))
		if code != C.CUDA_SUCCESS {
			return fmt.Errorf("tensor map of %+v: %w", b, failure(code))
		}
		return nil
	})
	d.maps[b] = m
	return m
}
