package model

import (
	"fmt"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// mxfp4 is how gpt-oss keeps its experts: blocks U8 [n, out, in/32, 16] of codes and scales U8 [n, out, in/32]. They
// stand for a weight [n, in, out], as the checkpoints have it that keep numbers.
func mxfp4() *storage {
	return &storage{
		name: fmt.Sprintf("MXFP4 blocks of %d", quant.MXFP4Block), codes: "_blocks", dtype: "U8",
		others: []string{"_scales"}, family: "gpt_oss",
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (weight, error) {
			scales := others[0]
			if len(codes.Shape) != 4 || codes.Shape[3] != quant.MXFP4Block/2 {
				return weight{}, misfit(codes, fmt.Sprintf("[experts, out, in/%d, %d]", quant.MXFP4Block,
					quant.MXFP4Block/2))
			}
			if want := codes.Shape[:3]; !slices.Equal(scales.Shape, want) {
				return weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s", want, codes.Name))
			}
			if err := wantType(scales, "U8"); err != nil {
				return weight{}, err
			}
			rows, cols := codes.Shape[1], codes.Shape[2]*quant.MXFP4Block
			kept := e2m1(codes, scales, rows, cols)
			return weight{shape: []int{codes.Shape[0], cols, rows}, coded: kept, read: func(dst []float32) error {
				if err := noNaN(scales); err != nil {
					return err
				}
				decodeTransposed(dst, codes.Data, scales.Data, rows, cols)
				return finite(dst, codes)
			}}, nil
		},
	}
}

// mxfp4Packed is mxfp4-pack-quantized of compressed-tensors: a weight [out, in] is codes U8 in weight_packed [out,
// in/2] and scales U8 in weight_scale [out, in/32].
func mxfp4Packed() *storage {
	return &storage{
		name: fmt.Sprintf("MXFP4 blocks of %d", quant.MXFP4Block), weight: ".weight", codes: ".weight_packed",
		dtype: "U8", others: []string{".weight_scale"},
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (weight, error) {
			scales := others[0]
			if len(codes.Shape) != 2 || codes.Shape[1]%(quant.MXFP4Block/2) != 0 {
				return weight{}, misfit(codes, fmt.Sprintf("[out, in/2], in a multiple of %d", quant.MXFP4Block))
			}
			rows, groups := codes.Shape[0], codes.Shape[1]/(quant.MXFP4Block/2)
			if want := []int{rows, groups}; !slices.Equal(scales.Shape, want) {
				return weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s", want, codes.Name))
			}
			if err := wantType(scales, "U8"); err != nil {
				return weight{}, err
			}
			kept := e2m1(codes, scales, rows, groups*quant.MXFP4Block)
			return weight{shape: []int{rows, groups * quant.MXFP4Block}, coded: kept, read: func(dst []float32) error {
				if err := noNaN(scales); err != nil {
					return err
				}
				inParallel(len(scales.Data), 1, func(b, end int) {
					quant.DecodeMXFP4(dst[b*quant.MXFP4Block:], codes.Data[b*quant.MXFP4Block/2:], scales.Data[b:end])
				})
				return finite(dst, codes)
			}}, nil
		},
	}
}

// e2m1 is a weight of MXFP4, matrices of rows of columns.
func e2m1(codes, scales safetensors.TensorInfo, rows, cols int) *coded {
	return &coded{format: quant.Format{Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: quant.MXFP4Block}, rows: rows,
		cols: cols, stride: cols / 2, high: 1, codes: codes, scales: scales}
}

// noNaN is an error where a scale, a power of two, is the code of NaN.
func noNaN(scales safetensors.TensorInfo) error {
	if at := slices.Index(scales.Data, 255); at >= 0 {
		return fmt.Errorf("%s: tensor %s: scale %v is NaN: fetch the checkpoint again", scales.File, scales.Name,
			place(scales.Shape, at))
	}
	return nil
}

// decodeTransposed is experts dst [n, cols, rows] from blocks and scales of [n, rows, cols]. Rows are decoded some at
// a time, so that they are in cache when they are written as columns.
func decodeTransposed(dst []float32, blocks, scales []byte, rows, cols int) {
	const together = 32
	if len(dst) == 0 {
		return
	}
	inParallel(len(dst)/cols, together, func(from, to int) {
		decoded := make([]float32, together*cols)
		for row := from; row < to; {
			expert, first := row/rows, row%rows
			n := min(together, to-row, rows-first)
			own := scales[row*cols/quant.MXFP4Block:][:n*cols/quant.MXFP4Block]
			quant.DecodeMXFP4(decoded, blocks[row*cols/2:], own)
			for col := range cols {
				for i := range n {
					dst[(expert*cols+col)*rows+first+i] = decoded[i*cols+col]
				}
			}
			row += n
		}
	})
}
