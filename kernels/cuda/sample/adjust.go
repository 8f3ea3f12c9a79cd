//go:build cuda

package sample

import (
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// mostEntries is how many are staged at a time.
const mostEntries = 1 << 20

// AdjustLogits changes the rows of logits F32 [n, V]. Its kernels are in sample.cu.
func (d *Ops) AdjustLogits(logits kernels.Tensor, rows []kernels.Adjustment) {
	var entries []sampleEntry
	cuts, cut := make([]sampleCut, len(rows)), false
	for i, r := range rows {
		for _, l := range r.Logits {
			entries = append(entries, sampleEntry{int32(i), l.ID, l.Bias, l.Repetition, l.Penalty})
		}
		if r.MinP > 0 && r.Temperature != 0 {
			cuts[i], cut = sampleCut{kernels.Inverse(r.Temperature), r.MinP}, true
		}
	}
	for part := range slices.Chunk(entries, mostEntries) {
		launchAdjustEntries(d.Context, [3]int{driver.Blocks(len(part), sampleThreads), 1, 1}, sampleThreads, 0, logits,
			driver.Stage(d.Context, part), len(part), logits.Stride)
	}
	if !cut {
		return
	}
	n, count := len(rows), driver.Blocks(logits.Cols, sampleVocabBlock)
	heads, grid := driver.Array[samplePick](d.Scratch(8*n*count)), driver.WarpGrid(n*count)
	launchSampleHeads(d.Context, grid, driver.WarpThreads, 0, heads, logits, n, logits.Cols, count, logits.Stride)
	launchAdjustCut(d.Context, grid, driver.WarpThreads, 0, logits, heads, driver.Stage(d.Context, cuts), n,
		logits.Cols, count, logits.Stride)
}
