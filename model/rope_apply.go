package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// rotated is a projection after its norm and rotation, with what the gradient needs.
type rotated struct {
	Y     kernels.Tensor // [T, heads*D]
	RStd  kernels.Tensor // of a norm by head, [T, heads]
	Whole NormSaved      // of a norm of the whole projection
}

// rotate is x [T, heads*D], which is kept, after its norm and rotary positions. The norm n is over a head, over the
// whole row, or nil. Where rope is nil there is neither.
func rotate(r *parallel.Rank, x kernels.Tensor, n *Norm, rope *kernels.Rope, b *Batch) (out rotated) {
	if rope == nil {
		return rotated{Y: x}
	}
	out.Y = r.Stack.New(x.DType, x.Rows, x.Cols)
	switch {
	case n == nil:
		r.Dev.HeadNormRope(out.Y, out.RStd, x, kernels.Tensor{}, b.Positions, *rope, kernels.Norm{})
	case n.W.W.Cols == rope.HeadDim:
		out.RStd = r.Stack.New(kernels.F32, x.Rows, x.Cols/rope.HeadDim)
		r.Dev.HeadNormRope(out.Y, out.RStd, x, n.W.W, b.Positions, *rope, n.Norm)
	default:
		y := n.Forward(r, x, &out.Whole)
		r.Dev.HeadNormRope(out.Y, out.RStd, y, kernels.Tensor{}, b.Positions, *rope, kernels.Norm{})
	}
	return out
}

// backward replaces d, the gradient of Y, by the gradient of x.
func (s *rotated) backward(r *parallel.Rank, d, x kernels.Tensor, n *Norm, rope *kernels.Rope, b *Batch) {
	if rope == nil {
		return
	}
	segments := b.Layout.Segments
	if n != nil && n.W.W.Cols == rope.HeadDim {
		r.Dev.HeadNormRopeBackward(d, n.W.Grad, d, x, s.RStd, n.W.W, b.Positions, *rope, n.Norm, segments)
		return
	}
	none := kernels.Tensor{}
	if n == nil {
		r.Dev.HeadNormRopeBackward(d, none, d, x, none, none, b.Positions, *rope, kernels.Norm{}, segments)
		return
	}
	mark := r.Stack.Mark()
	dy := r.Stack.New(d.DType, d.Rows, d.Cols)
	r.Dev.HeadNormRopeBackward(dy, none, d, x, none, none, b.Positions, *rope, kernels.Norm{}, segments)
	r.Dev.Zero(d)
	n.Backward(r, d, dy, b, &s.Whole)
	r.Stack.Release(mark)
}

// applyRope applies rotary positions in place.
func applyRope(r *parallel.Rank, x kernels.Tensor, rope *kernels.Rope, b *Batch) {
	r.Dev.HeadNormRope(x, kernels.Tensor{}, x, kernels.Tensor{}, b.Positions, *rope, kernels.Norm{})
}

// applyRopeBackward is the gradient of applyRope, in place.
func applyRopeBackward(r *parallel.Rank, d kernels.Tensor, rope *kernels.Rope, b *Batch) {
	none := kernels.Tensor{}
	r.Dev.HeadNormRopeBackward(d, none, d, d, none, none, b.Positions, *rope, kernels.Norm{}, b.Layout.Segments)
}
