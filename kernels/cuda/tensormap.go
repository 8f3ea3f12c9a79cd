//go:build cuda

package cuda

/*
#include <cuda.h>

// lockstepTensorMap describes bf16 matrices for copies of 64 columns x `rows` rows into 128-byte swizzled shared memory.
static CUresult lockstepTensorMap(void *map, void *data, cuuint64_t cols, cuuint64_t height, cuuint64_t groups, cuuint64_t pitch, cuuint32_t rows) {
	CUtensorMap out;
	cuuint64_t dims[] = {cols, height, groups}, strides[] = {pitch, pitch * height};
	cuuint32_t box[] = {64, rows, 1}, steps[] = {1, 1, 1};
	CUresult code = cuTensorMapEncodeTiled(&out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
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

// boxes describes a tensor of bf16 for TMA copies of 64 columns and so many rows. Rows start at multiples of 16 bytes (see vectors).
func (d *Device) boxes(t kernels.Tensor, rows int) (m tensorMap) {
	d.do(func() error {
		code := C.lockstepTensorMap(unsafe.Pointer(&m), t.Data, C.cuuint64_t(t.Cols), C.cuuint64_t(t.Rows), C.cuuint64_t(t.Groups), C.cuuint64_t(2*t.Stride), C.cuuint32_t(rows))
		if code != C.CUDA_SUCCESS {
			return fmt.Errorf("tensor map of %s: %w", t, failure(code))
		}
		return nil
	})
	return m
}
