package model

import (
	"fmt"
	"slices"

	"lockstep/data"
	"lockstep/quant"
)

// mxfp4 is how gpt-oss keeps its experts: blocks U8 [n, out, in/32, 16] of codes and scales U8 [n, out, in/32]. They stand for a weight [n, in, out], as the checkpoints
// have it that keep numbers.
func mxfp4() *storage {
	return &storage{
		name: fmt.Sprintf("MXFP4 blocks of %d", quant.MXFP4Block), codes: "_blocks", dtype: "U8", others: []string{"_scales"}, family: "gpt_oss",
		open: func(codes data.TensorInfo, others []data.TensorInfo) (weight, error) {
			scales := others[0]
			if len(codes.Shape) != 4 || codes.Shape[3] != quant.MXFP4Block/2 {
				return weight{}, misfit(codes, fmt.Sprintf("[experts, out, in/%d, %d]", quant.MXFP4Block, quant.MXFP4Block/2))
			}
			if want := codes.Shape[:3]; !slices.Equal(scales.Shape, want) {
				return weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s", want, codes.Name))
			}
			if err := wantType(scales, "U8"); err != nil {
				return weight{}, err
			}
			rows, cols := codes.Shape[1], codes.Shape[2]*quant.MXFP4Block
			return weight{shape: []int{codes.Shape[0], cols, rows}, read: func(dst []float32) error {
				if at := slices.Index(scales.Data, 255); at >= 0 {
					return fmt.Errorf("%s: tensor %s: scale %v is NaN: fetch the checkpoint again", scales.File, scales.Name, place(scales.Shape, at))
				}
				matrix := make([]float32, rows*cols)
				for g := 0; g*len(matrix) < len(dst); g++ {
					each := len(matrix) / quant.MXFP4Block
					quant.DecodeMXFP4(matrix, codes.Data[g*len(matrix)/2:], scales.Data[g*each:][:each])
					transpose(dst[g*len(matrix):][:len(matrix)], matrix, rows, cols)
				}
				return finite(dst, codes)
			}}, nil
		},
	}
}

// transpose is dst [cols, rows] from src [rows, cols], by tiles that stay in the cache.
func transpose(dst, src []float32, rows, cols int) {
	const tile = 32
	for r := 0; r < rows; r += tile {
		for c := range cols {
			to := dst[c*rows:][:rows]
			for i := r; i < min(r+tile, rows); i++ {
				to[i] = src[i*cols+c]
			}
		}
	}
}
