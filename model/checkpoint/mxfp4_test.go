package checkpoint

import (
	"math/rand/v2"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// Experts with a number of rows that no chunk divides: no chunk goes on into the next expert.
func TestDecodeTransposedAcrossExperts(t *testing.T) {
	const experts, rows, cols = 5, 45, 2 * quant.MXFP4Block
	rng := rand.New(rand.NewPCG(1, 2))
	blocks, scales := make([]byte, experts*rows*cols/2), make([]byte, experts*rows*cols/quant.MXFP4Block)
	for i := range blocks {
		blocks[i] = byte(rng.Uint32())
	}
	for i := range scales {
		scales[i] = byte(120 + rng.IntN(12))
	}
	want, got := make([]float32, experts*rows*cols), make([]float32, experts*rows*cols)
	of := func(data []byte) safetensors.TensorInfo { return safetensors.TensorInfo{DType: "U8", Data: data} }
	c := e2m1(of(blocks), of(scales), rows, cols)
	for row := range experts * rows {
		c.decode(want[row*cols:(row+1)*cols], row)
	}
	if err := c.transposed(got); err != nil {
		t.Fatal(err)
	}
	for e := range experts {
		for row := range rows {
			for col := range cols {
				if w, g := want[(e*rows+row)*cols+col], got[(e*cols+col)*rows+row]; w != g {
					t.Fatalf("expert %d, row %d, column %d: %g, want %g", e, row, col, g, w)
				}
			}
		}
	}
}
