package checkpoint

import (
	"fmt"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// mxfp4 is how gpt-oss keeps its experts: blocks U8 [n, out, in/32, 16] of codes and scales U8 [n, out, in/32]. They
// stand for a weight [n, in, out], as the checkpoints have it that keep numbers.
func mxfp4() *Format {
	return &Format{
		Name: fmt.Sprintf("MXFP4 blocks of %d", quant.MXFP4Block), codes: "_blocks", dtype: "U8",
		others: []string{"_scales"}, family: "gpt_oss",
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			scales := others[0]
			if len(codes.Shape) != 4 || codes.Shape[3] != quant.MXFP4Block/2 {
				return Weight{}, misfit(codes, fmt.Sprintf("[experts, out, in/%d, %d]", quant.MXFP4Block,
					quant.MXFP4Block/2))
			}
			if want := codes.Shape[:3]; !slices.Equal(scales.Shape, want) {
				return Weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s", want, codes.Name))
			}
			if err := wantType(scales, "U8"); err != nil {
				return Weight{}, err
			}
			rows, cols := codes.Shape[1], codes.Shape[2]*quant.MXFP4Block
			kept := e2m1(codes, scales, rows, cols)
			w := kept.weight([]int{codes.Shape[0], cols, rows})
			w.read = kept.transposed
			return w, nil
		},
	}
}

// mxfp4Packed is mxfp4-pack-quantized of compressed-tensors: a weight [out, in] is codes U8 in weight_packed [out,
// in/2] and scales U8 in weight_scale [out, in/32].
func mxfp4Packed() *Format {
	return &Format{
		Name: fmt.Sprintf("MXFP4 blocks of %d", quant.MXFP4Block), weight: ".weight", codes: ".weight_packed",
		dtype: "U8", others: []string{".weight_scale"},
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			scales := others[0]
			if len(codes.Shape) != 2 || codes.Shape[1]%(quant.MXFP4Block/2) != 0 {
				return Weight{}, misfit(codes, fmt.Sprintf("[out, in/2], in a multiple of %d", quant.MXFP4Block))
			}
			rows, groups := codes.Shape[0], codes.Shape[1]/(quant.MXFP4Block/2)
			if want := []int{rows, groups}; !slices.Equal(scales.Shape, want) {
				return Weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s", want, codes.Name))
			}
			if err := wantType(scales, "U8"); err != nil {
				return Weight{}, err
			}
			cols := groups * quant.MXFP4Block
			return e2m1(codes, scales, rows, cols).weight([]int{rows, cols}), nil
		},
	}
}

// e2m1 is a weight of MXFP4, matrices of rows of columns.
func e2m1(codes, scales safetensors.TensorInfo, rows, cols int) *Codes {
	return &Codes{Format: quant.MXFP4.Format(), rows: rows, cols: cols, stride: cols / 2, high: 1, codes: codes,
		scales: scales}
}

// noNaN is an error where a scale, a power of two, is the code of NaN.
func noNaN(scales safetensors.TensorInfo) error {
	if at := slices.Index(scales.Data, 255); at >= 0 {
		return fmt.Errorf("%s: tensor %s: scale %v is NaN: fetch the checkpoint again", scales.File, scales.Name,
			place(scales.Shape, at))
	}
	return nil
}

// transposed reads matrices [cols, rows] of codes [rows, cols]. Rows are decoded some at a time, so that they are in
// cache when they are written as columns.
func (c *Codes) transposed(dst []float32) error {
	if err := c.Check(); err != nil {
		return err
	}
	const together = 32
	InParallel(c.allRows(), together, func(from, to int) {
		decoded := make([]float32, together*c.cols)
		for row := from; row < to; {
			matrix, first := row/c.rows, row%c.rows
			n := min(together, to-row, c.rows-first)
			for i := range n {
				c.decode(decoded[i*c.cols:(i+1)*c.cols], row+i)
			}
			for col := range c.cols {
				for i := range n {
					dst[(matrix*c.cols+col)*c.rows+first+i] = decoded[i*c.cols+col]
				}
			}
			row += n
		}
	})
	return nil
}
