package gemm

import (
	"sync"

	"lockstep/kernels"
)

// Product is C = round(chain), [M, N]: each element is one chain over the pieces in turn, started from +0, or from C itself if Continue
// is set. Each piece starts a new step of DotTC16. C is row-major (CS 1); with Continue it is fp32.
type Product struct {
	C        Operand
	M, N     int
	Pieces   []Piece
	Continue bool
}

// Piece is A [M, K] times B [K, N].
type Piece struct {
	A, B Operand
	K    int
}

// Each runs body over [0, n) in ranges of at most grain, on as many threads as it likes.
type Each func(n, grain int, body func(worker, from, to int))

// Run computes products that do not overlap. Only tiles of output are handed to threads, never parts of a chain.
func (e *Engine) Run(each Each, products []Product) {
	tiles := cut(products)
	each(len(tiles), 1, func(_, from, to int) {
		s := scratches.Get().(*Scratch)
		defer scratches.Put(s)
		for _, t := range tiles[from:to] {
			e.tile(s, t)
		}
	})
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// tile is rows [i, i+m) and columns [j, j+n) of a product.
type tile struct {
	p          *Product
	i, j, m, n int
}

const tileRows, tileCols = 128, 128

func cut(products []Product) []tile {
	var tiles []tile
	for x := range products {
		p := &products[x]
		for i := 0; i < p.M; i += tileRows {
			for j := 0; j < p.N; j += tileCols {
				tiles = append(tiles, tile{p, i, j, min(tileRows, p.M-i), min(tileCols, p.N-j)})
			}
		}
	}
	return tiles
}

func (e *Engine) tile(s *Scratch, t tile) {
	c := t.p.C.From(t.i, t.j)
	dst, ldc := c.F, c.RS
	if c.H != nil {
		s.part = grown(s.part, t.m*t.n)
		dst, ldc = s.part, t.n
	}
	if !t.p.Continue {
		for i := range t.m {
			clear(dst[i*ldc : i*ldc+t.n])
		}
	}
	for _, p := range t.p.Pieces {
		e.block(s, dst, ldc, t.m, t.n, p.K, p.A.From(t.i, 0), p.B.From(0, t.j))
	}
	if c.H != nil {
		for i := range t.m {
			for j, v := range dst[i*ldc : i*ldc+t.n] {
				c.H[i*c.RS+j] = kernels.RoundBF16(v)
			}
		}
	}
}

// grown is memory for n values, s itself if it is large enough.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
