package gemm

import "sync"

// Product is C = round(chain), [M, N]: each element is one chain over the pieces in order, started from +0, or from C
// itself if Continue is set. Each piece starts a new step of DotTC16. C is row-major (CS 1); with Continue it is fp32.
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

// Each runs body over [0, n) in ranges of at most grain, on several threads.
type Each func(n, grain int, body func(worker, from, to int))

// Run computes products that do not overlap, on the threads of each. Threads share tiles of output, never parts of a
// chain.
func (e *Engine) Run(threads int, each Each, products []Product) {
	for i := range products {
		products[i].check()
	}
	tiles := cut(products, threads)
	each(len(tiles), 1, func(_, from, to int) {
		s := scratches.Get().(*Scratch)
		defer scratches.Put(s)
		for _, t := range tiles[from:to] {
			e.tile(s, t)
		}
	})
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

func (p *Product) check() {
	mustHold("C", p.C, p.M, p.N)
	for _, x := range p.Pieces {
		mustHold("A", x.A, p.M, x.K)
		mustHold("B", x.B, x.K, p.N)
	}
	if p.C.CS != 1 || p.Continue && p.C.H != nil {
		panic("gemm: C must be row-major, and fp32 if its chains continue")
	}
}

// tile computes one tile of output.
func (e *Engine) tile(s *Scratch, t tile) {
	c := t.p.C.From(t.i, t.j)
	dst, ldc := c.F, c.RS
	if c.H != nil {
		ldc = e.set.roundUp(t.n)
		s.part = aligned(s.part, t.m*ldc)
		dst = s.part
	}
	fresh := !t.p.Continue
	for _, p := range t.p.Pieces {
		e.block(s, dst, ldc, t.m, t.n, p.K, p.A.From(t.i, 0), p.B.From(0, t.j), fresh)
		fresh = fresh && p.K == 0
	}
	for i := range t.m {
		row := dst[i*ldc:][:t.n]
		if fresh {
			clear(row)
		}
		if c.H != nil {
			e.vec.Narrow(c.H[i*c.RS:][:t.n], row)
		}
	}
}
