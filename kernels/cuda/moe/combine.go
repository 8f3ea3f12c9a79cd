//go:build cuda

package moe

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// Combine: out[t] = round(residual[t] + round(sum over slots k of weights[t,k]*y[rowOf[t,k]])); weights nil: of y
// alone; residual nil: the sum alone.
func (d *Ops) Combine(out, residual, y, weights, rowOf kernels.Tensor) {
	launchCombine(d.Context, driver.Suffix(out), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0, out,
		residual, y, weights, rowOf, out.Rows, out.Cols, rowOf.Cols, out.Stride, residual.Stride, y.Stride)
}

// CombineBackward, of pairs p = t*K + slot with r = rowOf[p]: dy[r] = round(weights[p]*dout[t]) and dweights[p] =
// tree(dout[t]*y[r]); of an owner of the rows from `from` on its own alone, with dweights by row.
func (d *Ops) CombineBackward(dy, dweights, dout, y, weights, rowOf kernels.Tensor, from int) {
	launchCombineBackward(d.Context, driver.Suffix(dout), [3]int{driver.Blocks(rowOf.Len(), combinePairs), 1, 1},
		driver.WarpThreads, 0, dy, dweights, dout, y, weights, rowOf, rowOf.Len(), from, y.Rows, dout.Cols,
		weights.Cols, dy.Stride, dout.Stride, y.Stride)
}

// CombinePeers is Combine of rows that several cards have computed.
func (d *Ops) CombinePeers(out, residual kernels.Tensor, y kernels.PeerRows, weights, rowOf kernels.Tensor) {
	launchCombinePeers(d.Context, driver.Suffix(out), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0,
		owners(y), out, residual, y.Offsets, weights, rowOf, out.Rows, out.Cols, rowOf.Cols, out.Stride,
		residual.Stride, out.Cols)
}

// TakePeers: out[i] = y[rowOf[i]] of rows that several cards have computed.
func (d *Ops) TakePeers(out kernels.Tensor, y kernels.PeerRows, rowOf kernels.Tensor) {
	launchTakePeers(d.Context, driver.Suffix(out), driver.ElementGrid(out.Rows, out.Cols), driver.ElementThreads, 0,
		owners(y), out, y.Offsets, rowOf, out.Rows, out.Cols, out.Stride, out.Cols)
}

// GatherPeers: the rows of parts [T_i, n], on cards that are reached, one part's below the other's.
func (d *Ops) GatherPeers(out kernels.Tensor, parts []kernels.Tensor) {
	if out.DType == kernels.I32 {
		out.DType = kernels.F32 // bits are moved
	}
	first := make([]int, len(parts))
	for i := range parts[1:] {
		first[i+1] = first[i] + parts[i].Rows
	}
	launchGatherPeers(d.Context, driver.Suffix(out), driver.PartGrid(rowsMoved, out.Rows, out.Cols),
		driver.WarpThreads, 0, peers(parts, first), out, out.Rows, out.Cols)
}

// owners are rows of several cards as kernels take them.
func owners(y kernels.PeerRows) *combineParts {
	p := peers(y.Parts, y.First)
	for i, t := range y.Parts {
		p.at[i] -= uint64(y.Base[i] * t.Cols * t.DType.Size())
	}
	return p
}

// peers are tensors of several cards as kernels take them.
func peers(parts []kernels.Tensor, first []int) *combineParts {
	if len(parts) > combinePeers {
		panic(fmt.Sprintf("cuda: rows of %d cards, of more than %d", len(parts), combinePeers))
	}
	p := &combineParts{n: int32(len(parts))}
	for i, t := range parts {
		if !t.Contiguous() {
			panic(fmt.Sprintf("cuda: rows of a card have a stride: %s", t))
		}
		p.at[i], p.first[i] = uint64(driver.Address(t)), driver.Int32(first[i])
	}
	return p
}
