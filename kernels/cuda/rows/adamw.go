//go:build cuda

package rows

import (
	"slices"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

const (
	treeThreads  = 256 // one for each lane of a tree
	adamwThreads = 256 // of four elements each
)

// SumSquares: out[e] = tree over blocks of 4096 consecutive elements of group e of t of tree(v*v) of the block; out F32
// [1, Groups], t F32 and contiguous; and so of others.
func (d *Ops) SumSquares(out, t kernels.Tensor, then ...kernels.Squares) {
	all := append([]kernels.Squares{{Out: out, T: t}}, then...)
	for some := range slices.Chunk(all, adamwMostTensors) {
		of, blocks, groups := &adamwSquares{count: driver.Int32(len(some))}, 0, 0
		for i, s := range some {
			n := s.T.Rows * s.T.Cols
			each := driver.Blocks(n, adamwSumBlock) // blocks of a group
			of.x[i], of.out[i], of.n[i] = uint64(driver.Address(s.T)), uint64(driver.Address(s.Out)), int64(n)
			of.each[i] = driver.Int32(each)
			blocks, groups = blocks+s.T.Groups*each, groups+s.T.Groups
			of.first[i+1], of.group[i+1] = driver.Int32(blocks), driver.Int32(groups)
		}
		sums := d.Scratch(4 * blocks)
		launchSquareBlocks(d.Context, driver.WarpGrid(blocks), driver.WarpThreads, 0, of, sums)
		launchTreeOf(d.Context, [3]int{groups, 1, 1}, treeThreads, 0, of, sums)
	}
}

// ClipScale: out F32 [1, 2] is the norm of gradients times scale whose parts' sums of squares are given, and the factor
// that scales gradients and clips them to clip.
func (d *Ops) ClipScale(out, sums kernels.Tensor, scale, clip float64) {
	launchClipScale(d.Context, [3]int{1, 1, 1}, adamwClippers, 0, out, sums, scale, clip, sums.Len())
}

// alone is how many elements of an AdamW are a launch of their own: a block of several tensors first looks for its own,
// which only those of short ones have time for.
const alone = 1 << 22

// AdamW is one step of decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101), as kernels.Device states it.
func (d *Ops) AdamW(w, master, m, v, grad, factor kernels.Tensor, s kernels.AdamW, then ...kernels.Moments) {
	var short []kernels.Moments
	for _, of := range append([]kernels.Moments{{W: w, Master: master, M: m, V: v, Grad: grad}}, then...) {
		if of.Master.Len() >= alone {
			d.adamW(factor, s, of)
			continue
		}
		if len(short) == adamwMostTensors || len(short) > 0 && of.W.DType != short[0].W.DType {
			d.adamW(factor, s, short...)
			short = short[:0]
		}
		short = append(short, of)
	}
	if len(short) > 0 {
		d.adamW(factor, s, short...)
	}
}

// adamW is AdamW of tensors whose weights are of one type, by one launch.
func (d *Ops) adamW(factor kernels.Tensor, s kernels.AdamW, list ...kernels.Moments) {
	all, blocks := &adamwMoments{count: driver.Int32(len(list))}, 0
	for i, of := range list {
		n := of.Master.Len()
		all.w[i], all.master[i], all.m[i] = uint64(driver.Address(of.W)), uint64(driver.Address(of.Master)),
			uint64(driver.Address(of.M))
		all.v[i], all.grad[i], all.n[i] = uint64(driver.Address(of.V)), uint64(driver.Address(of.Grad)), int64(n)
		all.first[i] = driver.Int32(blocks)
		blocks += driver.Blocks(n, 4*adamwThreads)
	}
	launchAdamw(d.Context, driver.Suffix(list[0].W), [3]int{blocks, 1, 1}, adamwThreads, 0, all, factor, s.Beta1,
		1-s.Beta1, s.Beta2, 1-s.Beta2, s.LR*s.WeightDecay, s.LR, s.Eps, s.Correction1, s.Correction2)
}
