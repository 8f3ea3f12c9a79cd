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

// SumSquares: out[e] = tree over blocks of 4096 consecutive elements of group e of t of tree(v*v) of the block; out F32
// [1, Groups], t F32 and contiguous.
func (d *Ops) SumSquares(out, t kernels.Tensor) {
	n := t.Rows * t.Cols
	each := driver.Blocks(n, adamwSumBlock) // blocks of a group
	sums := d.Scratch(4 * t.Groups * each)
	launchSquareBlocks(d.Context, driver.WarpGrid(t.Groups*each), driver.WarpThreads, 0, sums, t, t.Groups, n)
	launchTreeOf(d.Context, [3]int{t.Groups, 1, 1}, treeThreads, 0, out, sums, each)
}

// ClipScale: out F32 [1, 2] is the norm of gradients times scale whose parts' sums of squares are given, and the factor
// that scales gradients and clips them to clip.
func (d *Ops) ClipScale(out, sums kernels.Tensor, scale, clip float64) {
	launchClipScale(d.Context, [3]int{1, 1, 1}, adamwClippers, 0, out, sums, scale, clip, sums.Len())
}

// AdamW is one step of decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as kernels.Device states it.
func (d *Ops) AdamW(w, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW) {
	n := master.Len()
	launchAdamw(d.Context, driver.Suffix(w), [3]int{driver.Blocks(n, 4*adamwThreads), 1, 1}, adamwThreads, 0, w, master,
		m, v, grad, factor, n, s.Beta1, 1-s.Beta1, s.Beta2, 1-s.Beta2, s.LR*s.WeightDecay, s.LR, s.Eps, s.Correction1,
		s.Correction2)
}
