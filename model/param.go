package model

import (
	"fmt"
	"io"

	"lockstep/kernels"
	"lockstep/quant"
)

// Param is one weight of the model as it lies in device memory: W is [Groups, Rows, Cols] in the model's storage type
// (a vector is [1, 1, n]). Where Q is not nil, it holds the weight in codes, and W is its shape without memory. A Param
// may hold several tensors of a checkpoint (the rows of q, k and v; all experts of a layer).
type Param struct {
	Name string // of the first part, or what the parts have in common
	W    kernels.Tensor
	Q    *kernels.QuantizedWeight
	// what Q's codes are made of numbers by; AsTrained: they are those of a release
	encoding quant.Encoding
	// A projection in codes, or whose codes this device or a copy has as numbers: Definition.Acts and Grads are for it.
	coded bool
	Parts []Part
	// Packed, where set, is the weight as one tensor, which some checkpoints of the family hold in place of its parts.
	Packed *Part
	Init   Init
	// Buffer: part of the checkpoint, never trained.
	Buffer bool

	// Of trained parameters only (see [Model.TrainShards]). Both are F32 and have the shape of W. Of several ranks they
	// are where the gradient is added during the backward pass of the parameter's unit alone; Grad is nil where another
	// rank alone adds it.
	Grad     kernels.Tensor
	HeadGrad kernels.Tensor // tied embeddings: the head's share, so that two chains over tokens never interleave

	// Its gradient counts as +0, whatever lies there, in the next WeightGrad, which clears this; nil: it never does.
	fresh *bool

	// Its matrices are copies of one weight, one for each expert: see [Model.shareFactors].
	copies bool

	unit int // that computes with it: see [Model.headUnit]

	// Where the weight lies if it is cut over ranks, whole matrices in order; W is then where this rank computes with
	// it. Nil: in W.
	home []weightHome
	// W is this rank's part of home: experts of expert parallel. Grad has its shape.
	split bool
	// Its home is one rank, which computes with it there: see [Model.PipelineStages].
	staged bool
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
	// RowOnDisk says where row i of the part lies in a checkpoint that has codes: whole rows, in order; nil: at i.
	RowOnDisk func(row int) int
}

// Init says how a weight is initialised where a model has no checkpoint.
type Init struct {
	Kind InitKind
	Std  float64                              // of Normal; bound of Uniform
	Draw func(i int, uniform float64) float32 // of Drawn: element i, from a number in [0, 1)
	// Period is after how many elements the same ones come again; 0: never. Those of Drawn do not.
	Period int
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
func (p *Param) Trained() bool { return !p.Grad.IsNil() || !p.HeadGrad.IsNil() }

// Elements is the number of weights.
func (p *Param) Elements() int { return p.matrices() * p.W.Rows * p.W.Cols }

// matrices is their number, on all ranks together.
func (p *Param) matrices() (n int) {
	if !p.split {
		return p.W.Groups
	}
	for _, h := range p.home {
		n += h.t.Groups
	}
	return n
}

// weight is where the weight lies, of a model on a device.
func (p *Param) weight(dev kernels.Device) elements {
	if p.home == nil {
		return elements{{dev, p.W.Reshape(1, p.W.Len())}}
	}
	var all elements
	for _, h := range p.home {
		all = append(all, elementsOn{h.memory(), h.t.Reshape(1, h.t.Len())})
	}
	return all
}

// part is a part's elements of all those of a tensor of the parameter's shape.
func (p *Param) part(all elements, part Part) elements {
	from := (part.Group*p.W.Rows + part.Row) * p.W.Cols
	return all.between(from, from+part.Rows*p.W.Cols)
}

// states is how many fp32 numbers training keeps for each weight, in all ranks together.
func (p *Param) states(tied bool) int {
	n := 1 + optimizerNumbers(p.W.DType, p.Q != nil)
	if tied {
		n++
	}
	return n
}

// groups are those of rows for the next gradient of the weight.
func (p *Param) groups(rows *kernels.Groups) *kernels.Groups {
	if !p.startsAnew() {
		return rows
	}
	of := *rows
	of.Fresh = true
	return &of
}

// startsAnew tells whether the next gradient of the weight is to be written over what lies there, once.
func (p *Param) startsAnew() bool {
	if p.fresh == nil || !*p.fresh {
		return false
	}
	*p.fresh = false
	return true
}

// headGrad is where the head adds the gradient of this matrix.
func (p *Param) headGrad() kernels.Tensor {
	if p.HeadGrad.IsNil() {
		return p.Grad
	}
	return p.HeadGrad
}

func (p *Param) String() string { return fmt.Sprintf("%s %s", p.Name, p.W) }

// elements are consecutive elements of a parameter, or of a tensor of its shape, in the memory of one device or of
// several.
type elements []elementsOn

// elementsOn are those on one device, or in the host's memory.
type elementsOn struct {
	dev interface {
		Write(dst kernels.Tensor, src []byte)
		Read(dst []byte, src kernels.Tensor)
	}
	t kernels.Tensor // [1, n]
}

func (e elements) len() (n int) {
	for _, on := range e {
		n += on.t.Cols
	}
	return n
}

// between is elements [from, to).
func (e elements) between(from, to int) (out elements) {
	for _, on := range e {
		if a, b := max(from, 0), min(to, on.t.Cols); a < b {
			out = append(out, elementsOn{on.dev, on.t.ColRange(a, b)})
		}
		from, to = from-on.t.Cols, to-on.t.Cols
	}
	return out
}

// write fills the elements from one on with raw ones, little-endian in the storage type.
func (e elements) write(from int, raw []byte) {
	for _, on := range e.between(from, from+len(raw)/e[0].t.DType.Size()) {
		on.dev.Write(on.t, raw[:on.t.Bytes()])
		raw = raw[on.t.Bytes():]
	}
}

// read copies the elements from one on, as many as dst has room for.
func (e elements) read(dst []byte, from int) {
	for _, on := range e.between(from, from+len(dst)/e[0].t.DType.Size()) {
		on.dev.Read(dst[:on.t.Bytes()], on.t)
		dst = dst[on.t.Bytes():]
	}
}

// writeTo writes all elements, little-endian.
func (e elements) writeTo(w io.Writer) (failed error) {
	size := e[0].t.DType.Size()
	raw := make([]byte, min(e.len(), pieceElements)*size)
	eachPiece(e.len(), func(from, n int) {
		if failed == nil {
			e.read(raw[:n*size], from)
			_, failed = w.Write(raw[:n*size])
		}
	})
	return failed
}

// pieceElements is how many elements are copied between host and device at a time. A copy of a full tensor may not fit
// into the memory of a small machine.
const pieceElements = 1 << 20

// eachPiece cuts so many elements.
func eachPiece(all int, visit func(from, n int)) {
	for from := 0; from < all; from += pieceElements {
		visit(from, min(pieceElements, all-from))
	}
}
