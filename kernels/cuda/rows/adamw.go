//go:build cuda

package rows

import (
	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const (
	treeThreads  = 256 // one for each lane of a tree
	adamwThreads = 256 // of four elements each
)

// SumSquares: out[0] = tree over blocks of 4096 consecutive elements of t of tree(v*v) of the block; out F32 [1, 1], t
// F32 and contiguous.
func (d *Ops) SumSquares(out, t kernels.Tensor) {
	n := driver.Blocks(t.Len(), adamwSumBlock)
	sums := d.Scratch(4 * n)
	launchSquareBlocks(d.Context, driver.WarpGrid(n), driver.WarpThreads, 0, sums, t, t.Len())
	launchTreeOf(d.Context, [3]int{1, 1, 1}, treeThreads, 0, out, sums, n)
}

// ClipScale: out F32 [1, 2] is the norm whose parts' sums of squares are given, and the factor that clips gradients to
// clip.
func (d *Ops) ClipScale(out, sums kernels.Tensor, clip float64) {
	launchClipScale(d.Context, [3]int{1, 1, 1}, 32, 0, out, sums, clip, sums.Len())
}

// AdamW is one step of decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as kernels.Device states it.
func (d *Ops) AdamW(w, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW) {
	n := master.Len()
	launchAdamw(d.Context, driver.Suffix(w), [3]int{driver.Blocks(n, 4*adamwThreads), 1, 1}, adamwThreads, 0, w, master,
		m, v, grad, factor, n, s.Beta1, 1-s.Beta1, s.Beta2, 1-s.Beta2, s.LR*s.WeightDecay, s.LR, s.Eps, s.Correction1,
		s.Correction2)
}
