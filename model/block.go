package model

import (
	"lockstep/kernels"
	"lockstep/parallel"
)

// Block is one pre-norm decoder layer: h = x + attn(norm(x)); y = h + ffn(norm(h)). Exactly one of MLP and MoE is set.
type Block struct {
	InputNorm *Norm
	Attn      *Attention
	PostNorm  *Norm
	MLP       *MLP
	MoE       *MoE
}

// BlockSaved keeps what Backward needs.
type BlockSaved struct {
	InputNorm, PostNorm NormSaved
	Attn                AttentionSaved
	MLP                 MLPSaved
	MoE                 MoESaved
}

// Forward is y [T, H] from x [T, H]. With s nil (serving, or a block to be recomputed) nothing but y stays on the stack.
func (bl *Block) Forward(r *parallel.Rank, x kernels.Tensor, rope kernels.Rope, b *Batch, s *BlockSaved) kernels.Tensor {
	y := r.Stack.New(x.DType, x.Rows, x.Cols)
	mark := r.Stack.Mark()
	var keep BlockSaved
	h := bl.Attn.Forward(r, bl.InputNorm.Forward(r, x, &keep.InputNorm), rope, b, &keep.Attn)
	r.Dev.Add(h, x, h)
	f := bl.PostNorm.Forward(r, h, &keep.PostNorm)
	if bl.MoE != nil {
		f = bl.MoE.Forward(r, f, b, &keep.MoE)
	} else {
		f = bl.MLP.Forward(r, f, nil, &keep.MLP)
	}
	r.Dev.Add(y, h, f)
	if s == nil {
		r.Stack.Release(mark)
	} else {
		*s = keep
	}
	return y
}

// Backward turns d, the gradient of y, into that of x, in place.
func (bl *Block) Backward(r *parallel.Rank, d kernels.Tensor, rope kernels.Rope, b *Batch, s *BlockSaved) {
	mark := r.Stack.Mark()
	var df kernels.Tensor
	if bl.MoE != nil {
		df = bl.MoE.Backward(r, d, b, &s.MoE)
	} else {
		df = bl.MLP.Backward(r, d, nil, b.Packs, &s.MLP)
	}
	bl.PostNorm.Backward(r, d, df, b, &s.PostNorm)
	r.Stack.Release(mark)
	da := bl.Attn.Backward(r, d, rope, b, &s.Attn)
	bl.InputNorm.Backward(r, d, da, b, &s.InputNorm)
	r.Stack.Release(mark)
}
