package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"

	"lockstep/kernels"
)

// The scalar reference of rule 4, written from the definition: a head at a time, no tile, no cache.

// recCase is a set of sequences for a recurrence: the delta rule, or a state space.
type recCase struct {
	kernels.Recurrence
	attnKind
	delta   bool
	lengths []int
	q, k, v [][]float32 // by sequence: [T, heads*dim]
	g, b    [][]float32 // [T, Heads]; b is beta before its sigmoid, or dt
	dout    [][]float32 // [T, Heads*ValueDim]
	skip    []float32   // [Heads]
}

func (c *recCase) String() string {
	return fmt.Sprintf("%v delta %v %+v lengths %v", c.attnKind, c.delta, c.Recurrence, c.lengths)
}

func newRecCase(rng *rand.Rand, kind attnKind, delta bool, r kernels.Recurrence, lengths ...int) *recCase {
	c := &recCase{Recurrence: r, attnKind: kind, delta: delta, lengths: lengths, skip: attnRandom(rng, kernels.F32,
		r.Heads, 1)}
	for _, n := range lengths {
		c.q = append(c.q, attnRandom(rng, kind.dtype, n*r.KeyHeads*r.KeyDim, 1))
		c.k = append(c.k, attnRandom(rng, kind.dtype, n*r.KeyHeads*r.KeyDim, 1))
		c.v = append(c.v, attnRandom(rng, kind.dtype, n*r.Heads*r.ValueDim, 1))
		c.dout = append(c.dout, attnRandom(rng, kind.dtype, n*r.Heads*r.ValueDim, 1))
		g, b := attnRandom(rng, kernels.F32, n*r.Heads, 0.3), attnRandom(rng, kernels.F32, n*r.Heads, 1)
		for i := range g {
			g[i] = -float32(math.Abs(float64(g[i])))
			if delta {
				b[i] = attnRound(kind.dtype, b[i])
			} else {
				b[i] = float32(math.Abs(float64(b[i])))
			}
		}
		c.g, c.b = append(c.g, g), append(c.b, b)
	}
	return c
}

// refChunk is one chunk of a head. Matrices are rows of slices.
type refChunk struct {
	rows                       int
	s                          [][]float32 // [KeyDim][ValueDim], at its start
	q, k, v, n, h              [][]float32
	rsq, rsk, c, e, beta, last []float32
	g, qq, kk                  [][]float32 // [row][row], columns behind the row's own are 0 in g
}

func refMatrix(rows, cols int) [][]float32 {
	m := make([][]float32, rows)
	for i := range m {
		m[i] = make([]float32, cols)
	}
	return m
}

func refT(m [][]float32) [][]float32 {
	t := refMatrix(len(m[0]), len(m))
	for i, row := range m {
		for j, v := range row {
			t[j][i] = v
		}
	}
	return t
}

// refChain continues acc by fma over x and y.
func refChain(acc float32, x, y []float32) float32 { return refDot(kernels.DotFMA, acc, x, y) }

// refProduct continues c by fma over the columns of a and the rows of b.
func refProduct(c, a, b [][]float32) {
	t := refT(b)
	for i := range c {
		for j := range c[i] {
			c[i][j] = refChain(c[i][j], a[i], t[j])
		}
	}
}

func refScaled(x []float32, a float32) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = v * a
	}
	return y
}

func (c *recCase) part(x [][]float32, seq, row, head, heads, dim int) []float32 {
	return x[seq][(row*heads+head)*dim:][:dim]
}

func refTreeDot(x, y []float32) float32 {
	p := make([]float32, len(x))
	for i := range x {
		p[i] = x[i] * y[i]
	}
	return scalarTree(p)
}

// chunks is the forward of a head of a sequence: out [T][ValueDim] before rounding, and every chunk.
func (c *recCase) chunks(seq, head int) (out [][]float32, all []*refChunk) {
	size := kernels.Default().ChunkRows
	s := refMatrix(c.KeyDim, c.ValueDim)
	for from := 0; from < c.lengths[seq]; from += size {
		ch := c.chunk(seq, head, from, min(size, c.lengths[seq]-from), s)
		all = append(all, ch)
		for i := range ch.rows {
			out = append(out, c.output(ch, head, i))
		}
		s = ch.next(c)
	}
	return out, all
}

func (c *recCase) chunk(seq, head, from, rows int, s [][]float32) *refChunk {
	ch := &refChunk{rows: rows, s: s, g: refMatrix(rows, rows), qq: refMatrix(rows, rows), kk: refMatrix(rows, rows)}
	exp2, sum, keyHead := c.exp2.Func(), float32(0), head/(c.Heads/c.KeyHeads)
	for i := range rows {
		q, k := c.part(c.q, seq, from+i, keyHead, c.KeyHeads, c.KeyDim), c.part(c.k, seq, from+i, keyHead, c.KeyHeads,
			c.KeyDim)
		if c.delta {
			rsq := 1 / float32(math.Sqrt(float64(refTreeDot(q, q)+1e-6)))
			rsk := 1 / float32(math.Sqrt(float64(refTreeDot(k, k)+1e-6)))
			q, k = refScaled(refScaled(q, rsq), float32(1/math.Sqrt(float64(c.KeyDim)))), refScaled(k, rsk)
			ch.rsq, ch.rsk = append(ch.rsq, rsq), append(ch.rsk, rsk)
		}
		sum += float32(c.g[seq][(from+i)*c.Heads+head] * kernels.Log2E)
		ch.q, ch.k, ch.v, ch.c = append(ch.q, q), append(ch.k, k), append(ch.v, c.part(c.v, seq, from+i, head, c.Heads,
			c.ValueDim)), append(ch.c, sum)
		ch.e = append(ch.e, exp2(sum))
		ch.h = append(ch.h, make([]float32, c.ValueDim))
		for j := range i + 1 {
			ch.g[i][j], ch.qq[i][j], ch.kk[i][j] = exp2(sum-ch.c[j]), refChain(0, q, ch.k[j]), refChain(0, k, ch.k[j])
		}
		ch.n = append(ch.n, c.added(ch, seq, head, from, i))
	}
	for i := range rows {
		ch.last = append(ch.last, exp2(ch.c[rows-1]-ch.c[i]))
	}
	return ch
}

// added is n of a row.
func (c *recCase) added(ch *refChunk, seq, head, from, i int) []float32 {
	b := c.b[seq][(from+i)*c.Heads+head]
	if !c.delta {
		ch.beta = append(ch.beta, b)
		return refScaled(ch.v[i], b)
	}
	b = scalarSigmoid(c.exp2.Func(), b)
	ch.beta = append(ch.beta, b)
	columns := refT(ch.s)
	n := make([]float32, c.ValueDim)
	for d := range n {
		ch.h[i][d] = refChain(0, ch.k[i], columns[d])
		n[d] = b * (ch.v[i][d] - float32(ch.e[i]*ch.h[i][d]))
		for j := range i {
			n[d] = kernels.FMA(-float32(b*float32(ch.kk[i][j]*ch.g[i][j])), ch.n[j][d], n[d])
		}
	}
	return n
}

func (c *recCase) output(ch *refChunk, head, i int) []float32 {
	o, columns := make([]float32, c.ValueDim), refT(ch.s)
	for d := range o {
		o[d] = ch.e[i] * refChain(0, ch.q[i], columns[d])
		for j := range i + 1 {
			o[d] = kernels.FMA(float32(ch.qq[i][j]*ch.g[i][j]), ch.n[j][d], o[d])
		}
		if !c.delta {
			o[d] += float32(c.skip[head] * ch.v[i][d])
		}
		o[d] += 0
	}
	return o
}

// next is the state after the chunk.
func (ch *refChunk) next(c *recCase) [][]float32 {
	s := refMatrix(c.KeyDim, c.ValueDim)
	for e := range s {
		for d := range s[e] {
			s[e][d] = ch.e[ch.rows-1] * ch.s[e][d]
			for i := range ch.rows {
				s[e][d] = kernels.FMA(float32(ch.k[i][e]*ch.last[i]), ch.n[i][d], s[e][d])
			}
		}
	}
	return s
}

// refGrads are the gradients of one head of a sequence, before sums over heads, norms and rounding.
type refGrads struct {
	dq, dk, dv  [][]float32
	dg, db, row []float32 // row: what each row adds to dskip
}

// backward goes from the last chunk to the first.
func (c *recCase) backward(seq, head int) *refGrads {
	_, all := c.chunks(seq, head)
	g := &refGrads{}
	a := refMatrix(c.KeyDim, c.ValueDim)
	for t := len(all) - 1; t >= 0; t-- {
		part := c.backwardChunk(all[t], seq, head, t*kernels.Default().ChunkRows, a)
		g.dq, g.dk, g.dv = append(part.dq, g.dq...), append(part.dk, g.dk...), append(part.dv, g.dv...)
		g.dg, g.db, g.row = append(part.dg, g.dg...), append(part.db, g.db...), append(part.row, g.row...)
	}
	return g
}

// backwardChunk is the statement at chunkedGrad, line by line; a becomes the gradient of the state before the
// chunk.
func (c *recCase) backwardChunk(ch *refChunk, seq, head, from int, a [][]float32) *refGrads {
	n := ch.rows
	var do, y, qs [][]float32
	x, p, ym, b, xm := refMatrix(n, c.ValueDim), refMatrix(n, n), refMatrix(n, n), refMatrix(n, n), refMatrix(n, n)
	refProduct(x, ch.k, a)
	for i := range n {
		do = append(do, c.part(c.dout, seq, from+i, head, c.Heads, c.ValueDim))
		x[i] = refScaled(x[i], ch.last[i])
		for j := range i + 1 {
			p[i][j] = ch.qq[i][j] * ch.g[i][j]
		}
	}
	refProduct(x, refT(p), do)
	if c.delta {
		for i := n - 1; i >= 0; i-- {
			for j := n - 1; j > i; j-- {
				m := -float32(ch.beta[j] * float32(ch.kk[j][i]*ch.g[j][i]))
				for d := range x[i] {
					x[i][d] = kernels.FMA(m, x[j][d], x[i][d])
				}
			}
		}
	}
	for i := range n {
		y = append(y, refScaled(x[i], -float32(ch.beta[i]*ch.e[i])))
		for j := range i + 1 {
			ym[i][j] = refChain(0, do[i], ch.n[j]) * ch.g[i][j]
			if c.delta && j < i {
				b[i][j] = -float32(refChain(0, x[i], ch.n[j]) * ch.g[i][j])
				xm[i][j] = ch.beta[i] * b[i][j]
			}
		}
	}
	out := &refGrads{dq: refMatrix(n, c.KeyDim), dk: refMatrix(n, c.KeyDim)}
	qs = refMatrix(n, c.ValueDim)
	refProduct(qs, ch.q, ch.s)
	refProduct(out.dq, do, refT(ch.s))
	for i := range n {
		out.dq[i] = refScaled(out.dq[i], ch.e[i])
	}
	refProduct(out.dq, ym, ch.k)
	refProduct(out.dk, ch.n, refT(a))
	ts, sum := make([]float32, n), float32(0)
	for i := range n {
		out.dk[i] = refScaled(out.dk[i], ch.last[i])
		ts[i] = refTreeDot(ch.k[i], out.dk[i])
		sum += ts[i]
	}
	if c.delta {
		refProduct(out.dk, y, refT(ch.s))
		refProduct(out.dk, xm, ch.k)
		refProduct(out.dk, refT(xm), ch.k)
	}
	refProduct(out.dk, refT(ym), ch.q)
	c.scalarGrads(out, ch, head, do, x, y, qs, ym, b, xm, ts, sum, a)

	for e := range a {
		for d := range a[e] {
			a[e][d] *= ch.e[n-1]
			for i := range n {
				a[e][d] = kernels.FMA(ch.q[i][e]*ch.e[i], do[i][d], a[e][d])
			}
			for i := range n {
				if c.delta {
					a[e][d] = kernels.FMA(ch.k[i][e], y[i][d], a[e][d])
				}
			}
		}
	}
	return out
}

// scalarGrads is dg, db or ddt, dv and the rows of dskip.
func (c *recCase) scalarGrads(out *refGrads, ch *refChunk, head int, do, x, y, qs, ym, b, xm [][]float32, ts []float32,
	sum float32, a [][]float32) {
	n := ch.rows
	z, dc := refMatrix(n, n), make([]float32, n)
	var flatA, flatS []float32
	for i := range a {
		flatA, flatS = append(flatA, a[i]...), append(flatS, ch.s[i]...)
	}
	for i := range n {
		for j := range i {
			z[i][j] = ym[i][j] * ch.qq[i][j]
			if c.delta {
				z[i][j] += float32(xm[i][j] * ch.kk[i][j])
			}
		}
	}
	for i := range n {
		column := float32(0)
		for j := range n {
			column += z[j][i]
		}
		dc[i] = scalarTree(z[i]) - column
		dc[i] += float32(ch.e[i] * refTreeDot(qs[i], do[i]))
		if c.delta {
			dc[i] += refTreeDot(y[i], ch.h[i])
		}
		dc[i] -= ts[i]
	}
	dc[n-1] += sum + float32(ch.e[n-1]*refTreeDot(flatA, flatS))
	out.dg = make([]float32, n)
	later := float32(0)
	for i := n - 1; i >= 0; i-- {
		later += dc[i]
		out.dg[i] = later
	}
	for i := range n {
		dv := refScaled(x[i], ch.beta[i])
		if c.delta {
			r := make([]float32, c.ValueDim)
			for d := range r {
				r[d] = ch.v[i][d] - float32(ch.e[i]*ch.h[i][d])
			}
			dbeta := refTreeDot(x[i], r) + refTreeDot(b[i], ch.kk[i])
			out.db = append(out.db, dbeta*float32(ch.beta[i]*(1-ch.beta[i])))
		} else {
			out.db = append(out.db, refTreeDot(x[i], ch.v[i]))
			out.row = append(out.row, refTreeDot(do[i], ch.v[i]))
			for d := range dv {
				dv[d] += float32(c.skip[head] * do[i][d])
			}
		}
		out.dv = append(out.dv, dv)
	}
}
