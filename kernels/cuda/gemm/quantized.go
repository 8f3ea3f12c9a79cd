//go:build cuda

package gemm

import (
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// PathDequantized is the value of [driver.Context.Path] that keeps products from reading codes themselves.
const PathDequantized = "dequantized"

// numbersBytes is what the numbers of a product's weights in codes may take of the workspace, unless those of one group
// take more. Tests set less.
var numbersBytes = 128 << 20

func inCodes(t kernels.Term) bool { return t.Q != nil }

// productQuantized is a product some of whose weights are in codes.
func (d *Ops) productQuantized(layout string, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	if g != nil && g.Interleaved {
		panic("cuda: a quantized weight of interleaved groups")
	}
	if f, ok := d.nativeCodes(out, g, terms); ok {
		d.productCodes(layout, f, out, g, terms)
		return
	}
	d.productDequantized(layout, out, g, terms)
}

// productDequantized is a product of the numbers that the codes stand for, as many groups at a time as the workspace
// takes.
func (d *Ops) productDequantized(layout string, out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	groups, each := 1, 0 // bytes of a group
	for _, t := range terms {
		if inCodes(t) {
			groups, each = max(groups, t.Q.Groups), each+numbersOf(*t.Q).Bytes()/t.Q.Groups
		}
	}
	d.busy = 0 // numbers come first
	count := min(max(numbersBytes/max(each, 1), 1), groups)
	for from := 0; from < groups; from += count {
		to := min(from+count, groups)
		d.productDense(layout, out, 1, groupsOf(g, from, to), d.numbers(terms, from, to))
	}
}

// numbersOf is the numbers of a weight in codes, without memory, rows padded to what TMA copies.
func numbersOf(w kernels.QuantizedWeight) kernels.Tensor {
	w.Rows = (w.Rows + 7) &^ 7 // so that what follows begins at a multiple of 16 bytes
	return w.Shape()
}

// groupsOf is groups [from, to) of a product.
func groupsOf(g *kernels.Groups, from, to int) *kernels.Groups {
	if g == nil || from == 0 && to == g.Count {
		return g
	}
	return &kernels.Groups{Offsets: g.Offsets.ColRange(from*g.Segments, to*g.Segments+1), Count: to - from,
		Segments: g.Segments}
}

// numbers are the terms for groups [from, to), weights in codes dequantized into the workspace.
func (d *Ops) numbers(terms []kernels.Term, from, to int) []kernels.Term {
	size := 0
	for _, t := range terms {
		if inCodes(t) {
			size += numbersOf(*t.Q).Bytes() / t.Q.Groups * (to - from)
		}
	}
	at := d.Scratch(size)
	all := slices.Clone(terms)
	for i := range all {
		t := &all[i]
		if !inCodes(*t) {
			t.W = matrices(t.W, from, to)
			continue
		}
		w := *t.Q
		w.Codes, w.Scales = matrices(w.Codes, from, to), matrices(w.Scales, from, to)
		w.Groups = w.Codes.Groups
		t.W, t.Q = w.Shape(), nil
		t.W.Data = driver.Pointer(at)
		d.Dequantize(t.W, w)
		at += cu.DevicePtr(numbersOf(w).Bytes())
	}
	return all
}

// matrices is groups [from, to) of a weight.
func matrices(w kernels.Tensor, from, to int) kernels.Tensor {
	w, w.Groups = w.Group(from), to-from
	return w
}
