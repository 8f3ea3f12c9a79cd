package lowrank

import (
	"math"
	"math/rand/v2"
	"testing"
)

// gapless is a matrix whose singular values are given: products of random reflections around a diagonal.
func gapless(rows, cols int, values []float64) Matrix {
	rng := rand.New(rand.NewPCG(1, 2))
	a := make([][]float64, rows)
	for i := range a {
		a[i] = make([]float64, cols)
		if i < min(cols, len(values)) {
			a[i][i] = values[i]
		}
	}
	reflect := func(n int, at func(i, j int) *float64, m int) {
		v := make([]float64, n)
		for i := range v {
			v[i] = rng.NormFloat64()
		}
		scaleVector(v, 1/math.Sqrt(dot(v, v)))
		for j := range m {
			sum := 0.0
			for i := range n {
				sum += v[i] * *at(i, j)
			}
			for i := range n {
				*at(i, j) -= 2 * sum * v[i]
			}
		}
	}
	for range 4 {
		reflect(rows, func(i, j int) *float64 { return &a[i][j] }, cols)
		reflect(cols, func(i, j int) *float64 { return &a[j][i] }, rows)
	}
	w := Matrix{rows, cols, make([]float32, rows*cols)}
	for i := range rows {
		for j := range cols {
			w.V[i*cols+j] = float32(a[i][j])
		}
	}
	return w
}

// Vectors are orthonormal eigenvectors of W W^T, and what is left of a matrix without its largest singular values has
// the norm of the others; near values, many zeros and more rows or columns change nothing.
func TestLeftSingular(t *testing.T) {
	for name, c := range map[string]struct {
		rows, cols, n int
		values        func(i int) float64
	}{
		"falling":    {60, 90, 7, func(i int) float64 { return math.Pow(0.9, float64(i)) }},
		"near":       {130, 70, 8, func(i int) float64 { return 1 - float64(i)*1e-4 }},
		"low rank":   {50, 40, 5, func(i int) float64 { return float64(max(0, 3-i)) }},
		"all":        {12, 30, 12, func(i int) float64 { return float64(i + 1) }},
		"one column": {9, 1, 1, func(int) float64 { return 3 }},
	} {
		var values []float64
		for i := range min(c.rows, c.cols) {
			values = append(values, c.values(i))
		}
		w := gapless(c.rows, c.cols, values)
		basis := w.leftSingular(c.n)
		for i, q := range basis {
			product := w.times(w.transposed(q))
			square := dot(product, q)
			addScaled(product, q, -square)
			off, top := math.Sqrt(dot(product, product)), values[largest(values, 1)[0]]
			if off > 1e-12*top*top {
				t.Errorf("%s: vector %d is none, by %g of %g", name, i, off, square)
			}
			for j, p := range basis[:i+1] {
				want := 0.0
				if i == j {
					want = 1
				}
				if got := dot(q, p); math.Abs(got-want) > 1e-9 {
					t.Errorf("%s: vectors %d and %d have product %g", name, i, j, got)
				}
			}
		}
		w.subtract(basis, 1)
		var got, want float64
		for _, x := range w.V {
			got += float64(x) * float64(x)
		}
		top := map[int]bool{}
		for _, i := range largest(values, c.n) {
			top[i] = true
		}
		for i, v := range values {
			if !top[i] {
				want += v * v
			}
		}
		if math.Abs(math.Sqrt(got)-math.Sqrt(want)) > 1e-6*values[largest(values, 1)[0]] {
			t.Errorf("%s: %g is left, want %g", name, math.Sqrt(got), math.Sqrt(want))
		}
	}
}

// A matrix without a column that depends on those before it has as many basis vectors as columns.
func TestFirstColumns(t *testing.T) {
	w := Matrix{3, 3, []float32{1, 2, 0, 1, 2, 1, 1, 2, 0}}
	if got := len(w.firstColumns(3)); got != 2 {
		t.Errorf("%d vectors of a matrix of rank 2", got)
	}
	w.subtract(w.firstColumns(3), 1)
	for _, x := range w.V {
		if math.Abs(float64(x)) > 1e-6 {
			t.Errorf("%v is left of a matrix in the span of its basis", w.V)
		}
	}
}

// A large matrix takes as many steps as it needs, not as many as it has rows.
func BenchmarkLeftSingular(b *testing.B) {
	w := Matrix{2048, 2048, make([]float32, 2048*2048)}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range w.V {
		w.V[i] = float32(rng.NormFloat64())
	}
	for b.Loop() {
		w.leftSingular(16)
	}
}
