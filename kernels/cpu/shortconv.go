package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// ShortConv is the causal depthwise convolution with SiLU that kernels.Recurrent states. Columns are independent: a
// thread takes some of them through all rows.
func (d *Device) ShortConv(out, x, w, bias, state kernels.Tensor, l *kernels.Layout) {
	op := d.shortConv("short convolution", x, w, bias, l)
	mustShape("short convolution", "out", out, x.Rows, x.Cols)
	to := d.matrix(out)
	d.eachColumn(x.Cols, op.taps+3, func(from, end int, buf [][]float32) {
		c := op.columns(from, end, buf)
		silu, ones := buf[op.taps+1], buf[op.taps+2]
		fill(ones, 1)
		for i := range l.Spans {
			s := &l.Spans[i]
			c.open(s, state)
			for r := range s.Rows {
				c.read(s.Row + r)
				d.vec.SwiGLU(silu, c.sum(s.Pos+r), ones)
				to.storePart(s.Row+r, from, silu)
			}
			c.close(s, state)
		}
	})
}

// ShortConvBackward passes over the rows once: du of a row completes dx of the row K-1 before it.
func (d *Device) ShortConvBackward(dx, dw, dbias, dout, x, w, bias kernels.Tensor, l *kernels.Layout) {
	const name = "short convolution backward"
	op := d.shortConv(name, x, w, bias, l)
	mustShape(name, "dx", dx, x.Rows, x.Cols)
	mustShape(name, "dout", dout, x.Rows, x.Cols)
	mustSegments(name, l.Segments, x.Rows)
	blocks, starts := kernels.RowBlocks(l.Segments)
	taps, n := op.taps, x.Cols
	size := (taps + 1) * n // of sums: of dw a row for each tap, and of dbias
	ofRun, ofBlock, ofSegment := make([]float32, size), make([]float32, size), make([]float32, size)
	sums := readSums(dw, dbias, taps, n)
	grad, dy := d.matrix(dx), d.matrix(dout)
	d.eachColumn(n, 2*taps+5, func(from, to int, buf [][]float32) {
		c, rest := op.columns(from, to, buf), buf[taps+1:]
		g := convGrad{c: c, dy: rest[0], ones: rest[1], spare: rest[2], dx: rest[3], du: rest[4:], run: ofRun, n: n,
			from: from, to: to}
		fill(g.ones, 1)
		block, segment := 0, 0
		endBlock := func() {
			g.flush(ofBlock, ofRun)
			g.flush(ofSegment, ofBlock)
			for block++; segment+1 < len(starts) && block >= int(starts[segment+1]); segment++ {
				g.flush(sums[min(segment, len(sums)-1)], ofSegment)
			}
		}
		for i := range l.Spans {
			s := &l.Spans[i]
			c.open(s, kernels.Tensor{})
			for r := range s.Rows + taps - 1 {
				if r < s.Rows {
					switch since := s.Row + r - int(blocks[block]); {
					case s.Row+r == int(blocks[block+1]):
						endBlock()
					case since > 0 && since%kernels.RowRun == 0:
						g.flush(ofBlock, ofRun)
					}
					g.row(&dy, s.Row+r, r)
				}
				if up := r - (taps - 1); up >= 0 {
					grad.storePart(s.Row+up, from, g.above(up, s.Rows))
				}
			}
		}
		endBlock()
	})
	writeSums(sums, dw, dbias, taps, n)
}

// shortConv is one call.
type shortConv struct {
	d    *Device
	x    matrix
	taps int
	w    []float32 // [taps, C]
	bias []float32 // [C], of zeros where there is none
}

func (d *Device) shortConv(name string, x, w, bias kernels.Tensor, l *kernels.Layout) *shortConv {
	if w.Rows != x.Cols || l.Rows() != x.Rows || !bias.IsNil() && bias.Cols != x.Cols {
		panic(fmt.Sprintf("cpu: %s of %s with %s and bias %s in %d rows", name, x, w, bias, l.Rows()))
	}
	op := &shortConv{d: d, x: d.matrix(x), taps: w.Cols, w: make([]float32, w.Cols*w.Rows),
		bias: make([]float32, x.Cols)}
	m, buf := d.matrix(w), make([]float32, w.Cols)
	for ch := range w.Rows {
		for j, v := range m.load(ch, buf) {
			op.w[j*x.Cols+ch] = v
		}
	}
	if !bias.IsNil() {
		b := d.matrix(bias)
		copy(op.bias, b.load(0, op.bias))
	}
	return op
}

// convColumns is columns [from, to) of a call. Position p of the span at hand is rows[p mod taps].
type convColumns struct {
	op       *shortConv
	from, to int
	first    int // position of the span's first row less its row in the batch
	rows     [][]float32
	w        [][]float32 // by tap
	u        []float32
}

// columns takes the first taps+1 buffers.
func (op *shortConv) columns(from, to int, buf [][]float32) *convColumns {
	c := &convColumns{op: op, from: from, to: to, rows: buf[:op.taps], u: buf[op.taps]}
	for j := range op.taps {
		c.w = append(c.w, op.w[j*op.x.cols+from:j*op.x.cols+to])
	}
	return c
}

// open begins a span: the rows before its first come from its slot.
func (c *convColumns) open(s *kernels.Span, state kernels.Tensor) {
	c.first = s.Pos - s.Row
	if state.IsNil() {
		if s.Pos != 0 {
			panic("cpu: short convolution: a span from the middle of a sequence without a state")
		}
		return
	}
	slot := c.op.d.matrix(state.Group(s.Slot))
	for p := max(0, s.Pos-(c.op.taps-1)); p < s.Pos; p++ {
		to := c.rows[p%c.op.taps]
		copy(to, slot.loadPart(p%(c.op.taps-1), c.from, c.to, to))
	}
}

// close stores a span's last rows in its slot.
func (c *convColumns) close(s *kernels.Span, state kernels.Tensor) {
	if state.IsNil() {
		return
	}
	slot := c.op.d.matrix(state.Group(s.Slot))
	end := s.Pos + s.Rows
	for p := max(s.Pos, end-(c.op.taps-1)); p < end; p++ {
		slot.storePart(p%(c.op.taps-1), c.from, c.rows[p%c.op.taps])
	}
}

// read loads a row of the batch.
func (c *convColumns) read(row int) {
	to := c.rows[(row+c.first)%c.op.taps]
	copy(to, c.op.x.loadPart(row, c.from, c.to, to))
}

// sum is u of a position.
func (c *convColumns) sum(pos int) []float32 {
	copy(c.u, c.op.bias[c.from:c.to])
	for j := range c.op.taps {
		if p := pos - (c.op.taps - 1) + j; p >= 0 {
			c.op.d.vec.AddMul(c.u, c.rows[p%c.op.taps], 1, c.w[j])
		}
	}
	return c.u
}

// convGrad is the backward of some columns.
type convGrad struct {
	c                   *convColumns
	du                  [][]float32 // du of position p is du[p mod taps]
	dy, ones, spare, dx []float32
	run                 []float32 // [taps+1, n]: the sum of the present run of rows
	n, from, to         int
}

func (g *convGrad) sumOf(x []float32, j int) []float32 { return x[j*g.n+g.from : j*g.n+g.to] }

// row computes du of a row at a position and adds it to the sums over rows.
func (g *convGrad) row(dout *matrix, row, pos int) {
	vec, taps := g.c.op.d.vec, g.c.op.taps
	g.c.read(row)
	du := g.du[pos%taps]
	vec.SwiGLUGrad(du, g.spare, dout.loadPart(row, g.from, g.to, g.dy), g.c.sum(pos), g.ones)
	for j := range taps {
		if p := pos - (taps - 1) + j; p >= 0 {
			vec.AddMul(g.sumOf(g.run, j), g.c.rows[p%taps], 1, du)
		}
	}
	vec.Add(g.sumOf(g.run, taps), g.sumOf(g.run, taps), du)
}

// above is dx of a position of a span with rows rows, once du of the positions after it is known.
func (g *convGrad) above(pos, rows int) []float32 {
	taps := g.c.op.taps
	clear(g.dx)
	for j := taps - 1; j >= 0; j-- {
		if p := pos + taps - 1 - j; p < rows {
			g.c.op.d.vec.AddMul(g.dx, g.du[p%taps], 1, g.c.w[j])
		}
	}
	return g.dx
}

// flush ends a run, a block or a segment of rows: its sum is added to total.
func (g *convGrad) flush(total, part []float32) {
	for j := range g.c.op.taps + 1 {
		g.c.op.d.vec.Add(g.sumOf(total, j), g.sumOf(total, j), g.sumOf(part, j))
		clear(g.sumOf(part, j))
	}
}

// readSums transposes dw [C, taps] and dbias [1, C] to rows [taps+1, C], of each segment where each has its own;
// writeSums transposes them back.
func readSums(dw, dbias kernels.Tensor, taps, n int) (sums [][]float32) {
	for range max(dw.Groups, dbias.Groups, 1) {
		sums = append(sums, make([]float32, (taps+1)*n))
	}
	eachSum(dw, dbias, taps, n, func(of, i int, x *float32) { sums[of][i] = *x })
	return sums
}

func writeSums(sums [][]float32, dw, dbias kernels.Tensor, taps, n int) {
	eachSum(dw, dbias, taps, n, func(of, i int, x *float32) { *x = sums[of][i] })
}

func eachSum(dw, dbias kernels.Tensor, taps, n int, visit func(of, i int, x *float32)) {
	if !dw.IsNil() {
		for i, x := 0, vector("short convolution backward", "dw", dw, dw.Groups*taps*n); i < len(x); i++ {
			at := i % (taps * n)
			visit(i/(taps*n), at%taps*n+at/taps, &x[i])
		}
	}
	if !dbias.IsNil() {
		for i, x := 0, vector("short convolution backward", "dbias", dbias, dbias.Groups*n); i < len(x); i++ {
			visit(i/n, taps*n+i%n, &x[i])
		}
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}
