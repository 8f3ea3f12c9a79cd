package kernels

import (
	"fmt"
	"slices"
	"unsafe"

	"lockstep/quant"
)

// Term is one piece of a dot chain: X [M, K] with W [N, K] for MatMul, X [M, N] with W [N, K] for MatMulT. With groups,
// W is [groups, N, K]. Q, where not nil, is the weight in W's place, for a device with [QuantizedProducts].
//
// XQ, where not nil, is X in codes of FP8x128, of one group, and X its shape without memory; Q is a weight of E4M3 in
// blocks of 128. The term must be the first of MatMul, and its chain is that of DeepGEMM and of cuBLAS on Hopper: for
// each block b of 128 k, ascending, p is a chain of steps from +0 over the codes alone, and then
//
//	acc = fma(p, fp32(xs[m,b]*ws[n,b]), acc)
//
// of scales xs and ws, where acc begins as +0. A step of p is 32 products of E4M3, exact, and p, aligned to the largest
// exponent among them (a product's is the sum of its factors', subnormal ones normalised first), each truncated toward
// zero at 13 fractional bits, added exactly, and the sum truncated toward zero to 13 fraction bits (measured on an
// H200, see LOG.md). Zeros take no part, k beyond the end counts as zeros, and a zero result is +0. Further terms
// continue acc by DotTC16.
//
// In MatMul a term may apply to columns [From, To) of out only: W then has To-From rows, and the chains of other
// columns skip the term. To 0: all columns, which the first term must have.
type Term struct {
	X, W     Tensor
	Q, XQ    *QuantizedWeight
	From, To int
}

// Weight is the shape of the term's weight. Of a quantized weight it has no memory.
func (t Term) Weight() Tensor {
	if t.Q != nil {
		return t.Q.Shape()
	}
	return t.W
}

// OfCodes tells whether the term's chain is of the codes of both operands, which have the shapes that it needs.
func (t Term) OfCodes() bool {
	x, w := t.XQ, t.Q
	return x != nil && w != nil && x.Groups == 1 && x.Format == quant.FP8x128.Format() &&
		w.Format.Code == quant.CodeE4M3 && w.Format.Wide == x.Format.Wide
}

// At is where the term's weight begins: it tells weights apart.
func (t Term) At() unsafe.Pointer {
	if t.Q != nil {
		return t.Q.Codes.Data
	}
	return t.W.Data
}

// Columns is the range of out's n columns that the term applies to.
func (t Term) Columns(n int) (from, to int) {
	if t.To == 0 {
		return 0, n
	}
	return t.From, t.To
}

// Covers reports whether the term applies to a column of out.
func (t Term) Covers(col int) bool { return t.To == 0 || t.From <= col && col < t.To }

// Runs splits out's n columns into runs to which the same terms apply. It returns the first column of each run, then n.
func Runs(n int, terms []Term) []int {
	runs := append(make([]int, 0, 2+2*len(terms)), 0, n)
	for i, t := range terms {
		from, to := t.Columns(n)
		if from < 0 || to < from || to > n || i == 0 && to-from != n || t.To == 0 && t.From != 0 {
			panic(fmt.Sprintf("kernels: term %d of a product applies to columns %d:%d of %d", i, t.From, t.To, n))
		}
		runs = append(runs, from, to)
	}
	slices.Sort(runs)
	return slices.Compact(runs)
}
