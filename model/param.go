package model

import (
	"fmt"

	"lockstep/kernels"
)

// Param is one weight of the model as it lies in device memory: W is [Groups, Rows, Cols] in the model's storage type
// (a vector is [1, 1, n]). A Param may hold several tensors of a checkpoint (the rows of q, k and v; all experts of a
// layer).
type Param struct {
	Name  string // of the first part, or what the parts have in common
	W     kernels.Tensor
	Parts []Part
	// Packed, where set, is the weight as one tensor, which some checkpoints of the family hold in place of its parts.
	Packed *Part
	Init   Init
	// Buffer: part of the checkpoint, never trained.
	Buffer bool

	// Of trained parameters only (see [Model.TrainShards]). Both are F32 and have the shape of W. Of several ranks they
	// are where the gradient is added during the backward pass of the parameter's unit alone.
	Grad     kernels.Tensor
	HeadGrad kernels.Tensor // tied embeddings: the head's share, so that two chains over tokens never interleave

	unit int // that computes with it: see [Model.headUnit]
}

// Part is one tensor of a checkpoint: rows [Row, Row+Rows) of group Group.
type Part struct {
	Name  string
	Group int
	Row   int
	Rows  int
	Shape []int // on disk
	// Disk says where on disk element i of the part lies, in elements; nil: at i.
	Disk func(i int) int
}

// Init says how a weight is initialised where a model has no checkpoint.
type Init struct {
	Kind InitKind
	Std  float64                              // of Normal; bound of Uniform
	Draw func(i int, uniform float64) float32 // of Drawn: element i, from a number in [0, 1)
}

// InitKind names a distribution.
type InitKind int

const (
	Zeros InitKind = iota
	Ones
	Normal
	Uniform
	Drawn
)

// Trained reports whether the parameter receives gradients.
func (p *Param) Trained() bool { return !p.Grad.IsNil() }

// Elements is the number of weights.
func (p *Param) Elements() int { return p.W.Len() }

// view is the part's memory as one contiguous tensor.
func (p *Param) view(t kernels.Tensor, part Part) kernels.Tensor {
	if part.Rows == p.W.Groups*p.W.Rows {
		return t.Reshape(1, t.Len())
	}
	return t.Group(part.Group).RowRange(part.Row, part.Row+part.Rows).Reshape(1, part.Rows*t.Cols)
}

// states is how many fp32 numbers training keeps for each weight, in all ranks together.
func (p *Param) states(tied bool) int {
	n := 1 + optimizerNumbers(p.W.DType)
	if tied {
		n++
	}
	return n
}

// headGrad is where the head adds the gradient of this matrix.
func (p *Param) headGrad() kernels.Tensor {
	if p.HeadGrad.IsNil() {
		return p.Grad
	}
	return p.HeadGrad
}

func (p *Param) String() string { return fmt.Sprintf("%s %s", p.Name, p.W) }
