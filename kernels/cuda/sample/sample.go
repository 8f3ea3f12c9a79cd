//go:build cuda

package sample

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Sample chooses an id for each row of logits F32 [n, V].
func (d *Ops) Sample(ids, logits kernels.Tensor, rows []kernels.Sampling) {
	draws := make([]sampleDraw, len(rows))
	for i, r := range rows {
		draws[i] = sampleDraw{topP: r.TopP, topK: int32(r.TopK), u: kernels.Uniform(r.Seed, r.Request, r.Index)}
		if r.Temperature != 0 {
			draws[i].inv = kernels.Inverse(r.Temperature)
		}
	}
	n, count := len(rows), driver.Blocks(logits.Cols, sampleVocabBlock)
	scratch, staged, grid := d.Scratch(12*n*count), driver.Stage(d.Context, draws), driver.WarpGrid(n*count)
	heads := driver.Array[samplePick](scratch)
	sums := cu.DevicePtr(heads.From(n * count))
	launchSampleHeads(d.Context, grid, driver.WarpThreads, 0, heads, logits, n, logits.Cols, count, logits.Stride)
	launchSampleSums(d.Context, grid, driver.WarpThreads, 0, sums, heads, logits, staged, n, logits.Cols, count,
		logits.Stride)
	launchSample(d.Context, [3]int{n, 1, 1}, sampleThreads, 12*count, ids, heads, sums, logits, staged, logits.Cols,
		count, logits.Stride)
}
