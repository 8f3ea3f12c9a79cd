// Package lowrank finds the parts of a matrix that PiSSA and OLoRA take out of a weight. It imports nothing of the
// project.
package lowrank

import (
	"math"
	"runtime"
	"sync"
)

// Matrix is [Rows, Cols] in fp32.
type Matrix struct {
	Rows, Cols int
	V          []float32
}

func (w Matrix) row(i int) []float32 { return w.V[i*w.Cols:][:w.Cols] }

// TakeLargest takes off the part of W in its largest singular values, so many.
func (w Matrix) TakeLargest(n int) { w.subtract(w.leftSingular(n), 1) }

// TakeColumns takes off scale times the first columns of Q and rows of R of W = QR, so many.
func (w Matrix) TakeColumns(n int, scale float64) { w.subtract(w.firstColumns(n), scale) }

// subtract takes scale * Q * Q^T * W off, with the vectors of Q in fp64.
func (w Matrix) subtract(basis [][]float64, scale float64) {
	parts := make([][]float64, len(basis))
	for i, q := range basis {
		parts[i] = w.transposed(q)
	}
	inParallel(w.Rows, func(from, to int) {
		for i := from; i < to; i++ {
			row := w.row(i)
			for j := range row {
				var sum float64
				for k, q := range basis {
					sum += float64(q[i] * parts[k][j])
				}
				row[j] = float32(float64(row[j]) - float64(scale*sum))
			}
		}
	})
}

// transposed is W^T q.
func (w Matrix) transposed(q []float64) []float64 {
	out := make([]float64, w.Cols)
	inParallel(w.Cols, func(from, to int) {
		for i, x := range q {
			for j, v := range w.row(i)[from:to] {
				out[from+j] += float64(x * float64(v))
			}
		}
	})
	return out
}

// times is W x.
func (w Matrix) times(x []float64) []float64 {
	out := make([]float64, w.Rows)
	inParallel(w.Rows, func(from, to int) {
		for i := from; i < to; i++ {
			for j, v := range w.row(i) {
				out[i] += float64(x[j] * float64(v))
			}
		}
	})
	return out
}

// firstColumns is an orthonormal basis of the first n columns. Of one that depends on those before it nothing is left,
// and a QR decomposition has a zero in R for it.
func (w Matrix) firstColumns(n int) (basis [][]float64) {
	for j := range n {
		column := make([]float64, w.Rows)
		for i := range column {
			column[i] = float64(w.row(i)[j])
		}
		before := math.Sqrt(dot(column, column))
		if after := orthogonalise(column, basis); after > 1e-12*before {
			scaleVector(column, 1/after)
			basis = append(basis, column)
		}
	}
	return basis
}

// orthogonalise takes the parts along orthonormal vectors off, twice (Giraud et al. 2005), and returns what is left of
// the norm.
func orthogonalise(x []float64, basis [][]float64) float64 {
	for range 2 {
		for _, q := range basis {
			addScaled(x, q, -dot(q, x))
		}
	}
	return math.Sqrt(dot(x, x))
}

func dot(a, b []float64) (sum float64) {
	for i, x := range a {
		sum += float64(x * b[i])
	}
	return sum
}

func addScaled(x, y []float64, a float64) {
	for i, v := range y {
		x[i] += float64(a * v)
	}
}

func scaleVector(x []float64, a float64) {
	for i := range x {
		x[i] *= a
	}
}

// AddProduct adds scale * b * A to a row, with b [r] and A [r, n]: sums and the product in fp64, rounded to fp32 once.
func AddProduct(row, b, a []float32, scale float32) {
	for j, x := range row {
		var sum float64
		for k, y := range b {
			sum += float64(float64(y) * float64(a[k*len(row)+j]))
		}
		row[j] = float32(float64(x) + float64(float64(scale)*sum))
	}
}

// inParallel runs body over [0, n) on all cores. What it computes does not depend on how n is cut.
func inParallel(n int, body func(from, to int)) {
	workers := runtime.GOMAXPROCS(0)
	each := (n + workers - 1) / workers
	var wait sync.WaitGroup
	for from := 0; from < n; from += each {
		wait.Go(func() { body(from, min(from+each, n)) })
	}
	wait.Wait()
}
