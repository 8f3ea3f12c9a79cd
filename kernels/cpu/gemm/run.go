package gemm

import "sync"

// Product is C = round(chain), [M, N]: each element is one chain over the pieces in order, started from +0, or from C
// itself if Continue is set. With Add each chain starts from +0 and is added to C; it ends with a piece that says so,
// and the next piece begins another. Each piece starts a new step of DotTC16. C is row-major (CS 1); with Continue or
// Add it is fp32.
type Product struct {
	C             Operand
	M, N          int
	Pieces        []Piece
	Continue, Add bool
}

// Piece is A [M, K] times B [K, N].
type Piece struct {
	A, B Operand
	K    int
	Ends bool // a chain of a product with Add
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
	if p.C.CS != 1 || (p.Continue || p.Add) && p.C.H != nil {
		panic("gemm: C must be row-major, and fp32 where it is added to")
	}
	if p.Add && len(p.Pieces) > 0 && !p.Pieces[len(p.Pieces)-1].Ends {
		panic("gemm: the last chain does not end")
	}
}

// tile computes one tile of output.
func (e *Engine) tile(s *Scratch, t tile) {
	c := t.p.C.From(t.i, t.j)
	dst, ldc := c.F, c.RS
	if c.H != nil || t.p.Add {
		ldc = e.set.roundUp(t.n)
		s.part = aligned(s.part, t.m*ldc)
		dst = s.part
	}
	if t.p.Add {
		e.addChains(s, t, c, dst, ldc)
		return
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

// addChains adds the chains of a tile to c, one after the other; part is memory for one.
func (e *Engine) addChains(s *Scratch, t tile, c Operand, part []float32, stride int) {
	fresh := true
	for _, p := range t.p.Pieces {
		e.block(s, part, stride, t.m, t.n, p.K, p.A.From(t.i, 0), p.B.From(0, t.j), fresh)
		fresh = fresh && p.K == 0
		if !p.Ends {
			continue
		}
		for i := 0; i < t.m && !fresh; i++ {
			row := c.F[i*c.RS:][:t.n]
			e.vec.Add(row, row, part[i*stride:][:t.n])
		}
		fresh = true
	}
}
