package checkpoint

import (
	"encoding/binary"
	"math"
	"testing"

	"lockstep/data/safetensors"
)

// Blocks of rows begin anew in each matrix of a stack, and are cut at its last row.
func TestScaleOfStack(t *testing.T) {
	const matrices, rows, cols, high, wide = 2, 3, 4, 2, 2
	scales := safetensors.TensorInfo{DType: "F32", Shape: []int{matrices, 2, 2}, Data: make([]byte, 4*matrices*2*2)}
	for i := range matrices * 2 * 2 {
		binary.LittleEndian.PutUint32(scales.Data[4*i:], math.Float32bits(float32(i)))
	}
	c := e4m3(safetensors.TensorInfo{DType: "F8_E4M3", Shape: []int{matrices, rows, cols},
		Data: make([]byte, matrices*rows*cols)}, scales, high, wide)
	for row := range matrices * rows {
		for block := range cols / wide {
			want := float32((row/rows*2+row%rows/high)*2 + block)
			if got := c.Scale(row, block); got != want {
				t.Errorf("row %d, block %d: scale %v, want %v", row, block, got, want)
			}
		}
	}
}
