//go:build cuda

package cuda

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
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
func (d *Device) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	draws := make([]draw, len(rows))
	for i, r := range rows {
		draws[i] = draw{topP: r.TopP, topK: int32(r.TopK), u: kernels.Uniform(r.Seed, r.Request, r.Index)}
		if r.Temperature != 0 {
			draws[i].inv = kernels.Inverse(r.Temperature)
		}
	}
	n, count := len(rows), blocks(logits.Cols, vocabBlock)
	heads, staged := d.workspace(12*n*count), stage(d, draws)
	sums, grid := heads+cu.DevicePtr(8*n*count), warps(n*count)
	d.launch("sample_heads", grid, warpThreads, 0, heads, logits, n, logits.Cols, count, logits.Stride)
	d.launch("sample_sums", grid, warpThreads, 0, sums, heads, logits, staged, n, logits.Cols, count, logits.Stride)
	d.launch("sample", [3]int{n, 1, 1}, drawThreads, 12*count, ids, heads, sums, logits, staged, logits.Cols, count,
		logits.Stride)
}
