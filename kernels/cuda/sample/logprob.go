//go:build cuda

package sample

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// LogProb of logits F32 [T, V], in blocks of VocabBlock columns as kernels.Device states. Logits are finite.
func (d *Ops) LogProb(logprob, stats, logits, targets, inv kernels.Tensor) {
	launchLogProb(d.Context, [3]int{logits.Rows, 1, 1}, driver.WarpThreads, 8*driver.Blocks(logits.Cols,
		d.Def.VocabBlock), logprob, stats, logits, targets, inv, logits.Cols, logits.Stride, stats.Stride)
}

// LogProbBackward writes dlogits F32 or BF16 [T, V]; dlogits may be logits.
func (d *Ops) LogProbBackward(dlogits, dlogprob, stats, logits, targets, inv kernels.Tensor) {
	launchLogProbBackward(d.Context, driver.Suffix(dlogits), driver.ElementGrid(logits.Rows, logits.Cols),
		driver.ElementThreads, 0, dlogits, dlogprob, stats, logits, targets, inv, logits.Rows, logits.Cols,
		dlogits.Stride, logits.Stride, stats.Stride)
}
