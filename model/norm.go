package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Norm is RMSNorm over the columns (Zhang & Sennrich, arXiv 1910.07467).
type Norm struct {
	W *Param // [1, n]
	kernels.Norm
}

// NormSaved is what Backward needs.
type NormSaved struct{ X, RStd kernels.Tensor }

// Forward is x / rms(x) * w, [T, n].
func (n *Norm) Forward(r *parallel.Rank, x kernels.Tensor, s *NormSaved) kernels.Tensor {
	y := r.Stack.New(x.DType, x.Rows, x.Cols)
	rstd := r.Stack.New(kernels.F32, 1, x.Rows)
	r.Dev.RMSNorm(y, rstd, x, n.W.W, n.Norm)
	if s != nil {
		*s = NormSaved{X: x, RStd: rstd}
	}
	return y
}

// Backward adds the gradient of x to dx.
func (n *Norm) Backward(r *parallel.Rank, dx, dy kernels.Tensor, b *Batch, s *NormSaved) {
	r.Dev.RMSNormBackward(dx, n.W.Grad, dy, s.X, s.RStd, n.W.W, n.Norm, b.Layout.Segments)
}
