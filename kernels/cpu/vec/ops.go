// Package vec is the loops over rows of fp32 that the CPU device is made of: reductions, products, exponentials and the
// elementwise middle of each operation. Every loop exists in plain Go and in AVX-512 and AVX2 assembly, and all give
// the same bits: mul and add are separate instructions, reductions are the definition's tree, and only the polynomial
// of Exp2 is fused. Loops that few models need are Go only. It imports kernels and nothing else of the project.
package vec

import (
	"fmt"

	"lockstep/kernels"
)

// Ops is one set of loops. It has no state: any number of goroutines may share it.
type Ops struct{ loops }

// loops are the functions that an instruction set provides. Slices of one call have one length, which the methods of
// Ops ensure.
type loops struct {
	max     func(x []float32) float32
	tree    func(x []float32) float32
	treeDot func(x, y []float32) float32
	// treeScaled is treeDot with y[i]*a for y[i].
	treeScaled func(x, y []float32, a float32) float32

	exp2     func(x float32) float32
	exp2Sub  func(dst, x []float32, scale, m float32)
	scaleTo  func(dst, x []float32, a float32)
	scaleAdd func(dst []float32, a float32, x []float32, b float32)
	add      func(dst, x, y []float32)
	mul      func(dst, x, y []float32)
	addMul   func(dst, x []float32, a float32, y []float32)

	normScale   func(dst, x []float32, a float32, w []float32)
	normGrad    func(dst, g, x []float32, rstd, c float32)
	normGradAdd func(dst, g, x []float32, rstd, c float32)

	rotate         func(lo, hi, xlo, xhi, cos, sin []float32)
	normRotate     func(lo, hi, xlo, xhi, wlo, whi, cos, sin []float32, a float32)
	unrotate       func(lo, hi, xlo, xhi, cos, sin []float32)
	unrotateMul    func(lo, hi, xlo, xhi, wlo, whi, cos, sin []float32)
	unrotateAddMul func(lo, hi, glo, ghi, xlo, xhi, cos, sin []float32, a float32)

	swiglu     func(out, g, u []float32)
	swigluGrad func(dg, du, dout, g, u []float32)
	adamW      func(master, m, v, grad []float32, s *adamW)

	largest      func(most, x []float32)
	blockLargest func(x, most []float32) // of whole blocks
	mxfp8        func(dst, x, most []float32)

	widen  func(dst []float32, src []uint16)
	narrow func(dst []uint16, src []float32)
}

// New is the loops for an instruction set of the CPU device: "avx512", "avx2" or "portable", with 2^x by a mode. The
// machine must have the set.
func New(isa string, exp2 kernels.Exp2Mode) *Ops {
	l, ok := sets[isa]
	if !ok {
		panic(fmt.Sprintf("vec: no instruction set %q", isa))
	}
	l.exp2 = exp2.Func()
	if exp2 == kernels.Exp2Ex2h {
		h := setsEx2h[isa]
		l.exp2Sub, l.swiglu, l.swigluGrad = h.exp2Sub, h.swiglu, h.swigluGrad
	}
	return &Ops{l}
}

var portable = loops{
	max: maxGo, tree: treeGo, treeDot: treeDotGo, treeScaled: treeScaledGo,
	scaleTo: scaleToGo, scaleAdd: scaleAddGo, add: addGo, mul: mulGo, addMul: addMulGo,
	normScale: normScaleGo, normGrad: normGradGo, normGradAdd: normGradAddGo,
	rotate: rotateGo, normRotate: normRotateGo, unrotate: unrotateGo, unrotateMul: unrotateMulGo,
	unrotateAddMul: unrotateAddMulGo,
	exp2Sub:        exp2SubGo(kernels.Exp2), swiglu: swigluGo(kernels.Exp2), swigluGrad: swigluGradGo(kernels.Exp2),
	largest: largestGo, blockLargest: blockLargestGo, mxfp8: mxfp8Go,
	adamW: adamWGo, widen: widenGo, narrow: narrowGo,
}

var portableEx2h = loops{exp2Sub: exp2SubGo(kernels.Exp2H), swiglu: swigluGo(kernels.Exp2H),
	swigluGrad: swigluGradGo(kernels.Exp2H)}
