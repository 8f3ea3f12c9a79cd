package lowrank

import (
	"math"
	"slices"
)

// leftSingular is the left singular vectors of the n largest singular values, orthonormal: the eigenvectors of W W^T,
// by Lanczos's method with full reorthogonalisation (Golub & Van Loan, Matrix Computations, 10.3) in fp64. It goes on
// until each is an eigenvector to 1e-13 of the largest eigenvalue, or the space is complete.
func (w Matrix) leftSingular(n int) [][]float64 {
	var q [][]float64 // orthonormal; W W^T is tridiagonal in them
	var diagonal, off []float64
	next, check := w.start(0), 2*n+16
	for {
		if norm := orthogonalise(next, q); norm > 0 {
			scaleVector(next, 1/norm)
		}
		q = append(q, next)
		product := w.times(w.transposed(next))
		diagonal = append(diagonal, dot(product, next))
		beta := orthogonalise(product, q)
		complete := len(q) == w.Rows
		if complete || len(q) >= check {
			check += check / 3
			values, vectors := tridiagonalEigen(diagonal, off)
			if top := largest(values, n); complete || converged(values, vectors, top, beta) {
				return combine(q, vectors, top)
			}
		}
		if next = product; beta <= 1e-14*slices.Max(diagonal) { // the space is invariant: go on outside it
			next, beta = w.start(len(q)), 0
		}
		off = append(off, beta)
	}
}

// start is a vector to begin with, the same on every machine.
func (w Matrix) start(seed int) []float64 {
	x := make([]float64, w.Rows)
	for i := range x {
		x[i] = 2*uniform(uint64(seed), uint64(i)) - 1
	}
	return x
}

// largest are the indices of the n largest values, descending.
func largest(values []float64, n int) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if values[a] > values[b] {
			return -1
		} else if values[a] < values[b] {
			return 1
		}
		return 0
	})
	return order[:min(n, len(order))]
}

// converged tells whether the residuals of some eigenvectors, |beta * last component|, are small.
func converged(values []float64, vectors [][]float64, of []int, beta float64) bool {
	for _, i := range of {
		if math.Abs(beta*vectors[len(vectors)-1][i]) > 1e-13*values[of[0]] {
			return false
		}
	}
	return true
}

// combine is the sums of basis vectors by columns of vectors.
func combine(basis, vectors [][]float64, columns []int) (out [][]float64) {
	for _, c := range columns {
		x := make([]float64, len(basis[0]))
		for k, q := range basis {
			addScaled(x, q, vectors[k][c])
		}
		out = append(out, x)
	}
	return out
}

// tridiagonalEigen is the eigenvalues of a symmetric tridiagonal matrix, unordered, and its eigenvectors as the columns
// of rows: implicit QL with Wilkinson's shift (Golub & Van Loan, 8.3; EISPACK's tql2).
func tridiagonalEigen(diagonal, off []float64) (values []float64, rows [][]float64) {
	n := len(diagonal)
	d, e := slices.Clone(diagonal), append(slices.Clone(off), 0)
	rows = make([][]float64, n)
	for i := range rows {
		rows[i] = make([]float64, n)
		rows[i][i] = 1
	}
	for l := range n {
		for {
			m := l
			for m < n-1 && math.Abs(e[m]) > 1e-16*(math.Abs(d[m])+math.Abs(d[m+1])) {
				m++
			}
			if m == l {
				break
			}
			sweep(d, e, rows, l, m)
		}
	}
	return d, rows
}

// sweep is one QL step on the unreduced block [l, m].
func sweep(d, e []float64, rows [][]float64, l, m int) {
	g := (d[l+1] - d[l]) / (2 * e[l])
	g = d[m] - d[l] + e[l]/(g+math.Copysign(root(g, 1), g))
	s, c, p := 1.0, 1.0, 0.0
	for i := m - 1; i >= l; i-- {
		f, b := s*e[i], float64(c*e[i])
		r := root(f, g)
		if e[i+1] = r; r == 0 { // the block falls apart here
			d[i+1] -= p
			e[m] = 0
			return
		}
		s, c = f/r, g/r
		g = d[i+1] - p
		r = float64((d[i]-g)*s) + float64(2*c*b)
		p = float64(s * r)
		d[i+1] = g + p
		g = float64(c*r) - b
		for _, row := range rows {
			x, y := row[i], row[i+1]
			row[i], row[i+1] = float64(c*x)-float64(s*y), float64(s*x)+float64(c*y)
		}
	}
	d[l] -= p
	e[l], e[m] = g, 0
}

// root is the square root of a^2 + b^2. math.Hypot has other bits on other machines.
func root(a, b float64) float64 { return math.Sqrt(float64(a*a) + float64(b*b)) }

// uniform is a number in [0, 1) of a counter, by the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
func uniform(seed, i uint64) float64 {
	x := (seed<<32 + i + 1) * 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64(float64((x^x>>31)>>11) / (1 << 53))
}
