package model

import (
	"encoding/binary"
	"fmt"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// int4Groups is pack-quantized of compressed-tensors: a weight [out, in] is 4-bit codes, eight in a word of
// weight_packed I32 [out, ceil(in/8)], weight_scale [out, ceil(in/group)], and weight_shape, the numbers out and in.
func int4Groups(group int) *storage {
	return &storage{
		name: fmt.Sprintf("INT4 groups of %d", group), weight: ".weight", codes: ".weight_packed", dtype: "I32",
		others: []string{".weight_scale", ".weight_shape"},
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (weight, error) {
			scales := others[0]
			shape, err := readShape(others[1])
			if err != nil {
				return weight{}, err
			}
			rows, cols := shape[0], shape[1]
			if want := []int{rows, (cols + 7) / 8}; !slices.Equal(codes.Shape, want) {
				return weight{}, misfit(codes, fmt.Sprintf("%v: %s says that the weight is %v", want, others[1].Name,
					shape))
			}
			if want := []int{rows, (cols + group - 1) / group}; !slices.Equal(scales.Shape, want) {
				return weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each group of a weight %v", want, shape))
			}
			if err := wantType(scales, "BF16", "F16", "F32"); err != nil {
				return weight{}, err
			}
			kept := &coded{format: quant.Format{Code: quant.CodeINT4, Scale: scaleType(scales.DType), Wide: group},
				rows: rows, cols: cols, stride: codes.Shape[1] * 4, high: 1, codes: codes, scales: scales}
			return weight{shape: shape, coded: kept, read: func(dst []float32) error {
				s, err := readScales(scales)
				if err != nil {
					return err
				}
				stride, groups := codes.Shape[1]*4, scales.Shape[1]
				inParallel(rows, 1, func(r, end int) {
					quant.DecodeINT4Groups(dst[r*cols:], codes.Data[r*stride:], s[r*groups:], end-r, cols, group)
				})
				return finite(dst, codes)
			}}, nil
		},
	}
}

// readShape is weight_shape: out and in.
func readShape(t safetensors.TensorInfo) ([]int, error) {
	if !slices.Equal(t.Shape, []int{2}) {
		return nil, misfit(t, "[2]: the rows and columns of the weight")
	}
	if err := wantType(t, "I32", "I64"); err != nil {
		return nil, err
	}
	shape, size := make([]int, 2), len(t.Data)/2
	for i := range shape {
		n := int64(int32(binary.LittleEndian.Uint32(t.Data[i*size:])))
		if size == 8 {
			n = int64(binary.LittleEndian.Uint64(t.Data[i*size:]))
		}
		if n <= 0 || n > 1<<31 {
			return nil, fmt.Errorf("%s: tensor %s says %d: want the rows and columns of the weight: fetch the "+
				"checkpoint again", t.File, t.Name, n)
		}
		shape[i] = int(n)
	}
	return shape, nil
}
