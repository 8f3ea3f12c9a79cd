//go:build cuda

package sample

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// draw is a row's settings as sample.cu has them.
type draw struct {
	inv, topP, u float32
	topK         int32
}

// Sizes of sample.cu.
const (
	drawThreads = 256
	vocabBlock  = 1024
)

// Sample chooses an id for each row of logits F32 [n, V]. NaN is a bug that this device does not report.
func (d *Ops) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	draws := make([]draw, len(rows))
	for i, r := range rows {
		draws[i] = draw{topP: r.TopP, topK: int32(r.TopK), u: kernels.Uniform(r.Seed, r.Request, r.Index)}
		if r.Temperature != 0 {
			draws[i].inv = kernels.Inverse(r.Temperature)
		}
	}
	n, count := len(rows), driver.Blocks(logits.Cols, vocabBlock)
	heads, staged := d.Scratch(12*n*count), driver.Stage(d.Context, draws)
	sums, grid := heads+cu.DevicePtr(8*n*count), driver.Warps(n*count)
	d.Launch("sample_heads", grid, driver.WarpThreads, 0, heads, logits, n, logits.Cols, count, logits.Stride)
	d.Launch("sample_sums", grid, driver.WarpThreads, 0, sums, heads, logits, staged, n, logits.Cols, count,
		logits.Stride)
	d.Launch("sample", [3]int{n, 1, 1}, drawThreads, 12*count, ids, heads, sums, logits, staged, logits.Cols, count,
		logits.Stride)
}
