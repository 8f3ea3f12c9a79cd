package checkpoint

import (
	"fmt"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// fp8Blocks is FP8 of DeepSeek-V3 and those after it: a weight [out, in] is E4M3 codes, and a scale in weight_scale_inv
// [ceil(out/high), ceil(in/wide)] multiplies each block. Scales are F32 or BF16; those of DeepSeek-V3.1 and later are
// powers of two (scale_fmt ue8m0), which may be kept as F8_E8M0. Experts in one tensor [n, out, in] have scales [n,
// ...].
func fp8Blocks(high, wide int) *Format {
	return &Format{
		Name: fmt.Sprintf("FP8 blocks of %d x %d", high, wide), dtype: "F8_E4M3", others: []string{"_scale_inv"},
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			scales := others[0]
			rank := len(codes.Shape)
			if rank < 2 || rank > 3 {
				return Weight{}, misfit(codes, "a matrix, or one for each expert")
			}
			rows, cols := codes.Shape[rank-2], codes.Shape[rank-1]
			want := append(slices.Clone(codes.Shape[:rank-2]), (rows+high-1)/high, (cols+wide-1)/wide)
			if !slices.Equal(scales.Shape, want) {
				return Weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s %v", want, codes.Name,
					codes.Shape))
			}
			if err := wantType(scales, "F32", "BF16", "F8_E8M0"); err != nil {
				return Weight{}, err
			}
			return e4m3(codes, scales, high, wide).weight(codes.Shape), nil
		},
	}
}

// fp8Rows is FP8 of compressed-tensors: a weight [out, in] is E4M3 codes, and a scale F32 or BF16 in weight_scale [out,
// 1] multiplies each row, or (whole) one of [1] all of them.
func fp8Rows(whole bool) *Format {
	name := "FP8 with a scale for each row"
	if whole {
		name = "FP8 with one scale for a tensor"
	}
	return &Format{
		Name: name, weight: ".weight", codes: ".weight", dtype: "F8_E4M3", others: []string{".weight_scale"},
		Ignored: ".input_scale",
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			scales := others[0]
			if len(codes.Shape) != 2 {
				return Weight{}, misfit(codes, "a matrix")
			}
			rows, cols := codes.Shape[0], codes.Shape[1]
			switch want := []int{rows, 1}; {
			case whole && scales.Len() != 1:
				return Weight{}, misfit(scales, fmt.Sprintf("[1]: one scale for %s", codes.Name))
			case !whole && !slices.Equal(scales.Shape, want):
				return Weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each row of %s %v", want, codes.Name,
					codes.Shape))
			}
			if err := wantType(scales, "F32", "BF16"); err != nil {
				return Weight{}, err
			}
			high := 1
			if whole {
				high = rows
			}
			return e4m3(codes, scales, high, cols).weight(codes.Shape), nil
		},
	}
}

// e4m3 is a weight of E4M3 codes with scales of blocks of high rows and wide columns.
func e4m3(codes, scales safetensors.TensorInfo, high, wide int) *Codes {
	scale := scaleType(scales.DType)
	if scale == quant.ScaleBF16 {
		scale = quant.ScaleF32 // the product of a code and a scale is rounded twice all the same
	}
	rank := len(codes.Shape)
	return &Codes{Format: quant.Format{Code: quant.CodeE4M3, Scale: scale, Wide: wide}, rows: codes.Shape[rank-2],
		cols: codes.Shape[rank-1], stride: codes.Shape[rank-1], high: high, codes: codes, scales: scales}
}
