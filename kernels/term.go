package kernels

import (
	"fmt"
	"slices"
)

// Term is one piece of a dot chain: X [M, K] with W [N, K] for MatMul, X [M, N] with W [N, K] for MatMulT. With groups,
// W is [groups, N, K].
//
// In MatMul a term may count for columns [From, To) of out alone: W then has To-From rows, and the chain of another
// column leaves the term out. To 0: for all columns, as the first term always does.
type Term struct {
	X, W     Tensor
	From, To int
}

// Columns are those of out, of n, that the term counts for.
func (t Term) Columns(n int) (from, to int) {
	if t.To == 0 {
		return 0, n
	}
	return t.From, t.To
}

// Covers tells whether the term counts for a column of out.
func (t Term) Covers(col int) bool { return t.To == 0 || t.From <= col && col < t.To }

// Runs are the columns where runs of out's n columns that the same terms cover begin, and the end.
func Runs(n int, terms []Term) []int {
	runs := append(make([]int, 0, 2+2*len(terms)), 0, n)
	for i, t := range terms {
		from, to := t.Columns(n)
		if from < 0 || to < from || to > n || i == 0 && to-from != n || t.To == 0 && t.From != 0 {
			panic(fmt.Sprintf("kernels: term %d of a product counts for columns %d:%d of %d", i, t.From, t.To, n))
		}
		runs = append(runs, from, to)
	}
	slices.Sort(runs)
	return slices.Compact(runs)
}
