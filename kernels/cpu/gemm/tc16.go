package gemm

// stepCols is the number of columns of a kernel of steps.
const stepCols = 16

// split is packed operands of DotTC16 cut into significands and exponents, in words that the kernels of an instruction
// set understand.
type split struct {
	as, ae, bs, be []uint32
}

// tc16 continues the chains of c, [m, n], over k in steps of 16, or starts them from +0 if fresh. Blocks of B are
// packed as in fma.
func (e *Engine) tc16(s *Scratch, c []float32, ldc, m, n, k int, a, b Operand, fresh bool) {
	for j := 0; j < n; j += blockCols {
		cols := min(blockCols, n-j)
		for l := 0; l < k; l += blockK {
			depth := min(blockK, k-l)
			padded := (depth + steps - 1) / steps * steps
			finite := e.splitB(s, b.From(l, j), depth, padded, cols)
			for i := 0; i < m; i += blockRows {
				rows := min(blockRows, m-i)
				t := stepTile{c: c[i*ldc+j:], ldc: ldc, rows: rows, cols: cols, depth: depth, a: a.From(i, l),
					b: b.From(l, j), fresh: fresh && l == 0, kernels: e.set.steps16, products: steps, chain: chain16}
				if e.splitA(s, t.a, rows, depth, padded) && finite {
					e.steps(s, t, padded)
				} else {
					t.scalar(0, 0, rows, cols)
				}
			}
		}
	}
}

// splitA packs [rows, depth] of A with contiguous rows of padded k, and returns whether all values are finite.
func (e *Engine) splitA(s *Scratch, a Operand, rows, depth, padded int) bool {
	s.a = aligned(s.a, e.set.roundUp(padded)*e.set.roundUp(rows))
	e.pack(s, s.a, padded, a, rows, depth)
	for i := range rows {
		clear(s.a[i*padded+depth : (i+1)*padded])
	}
	s.split.as, s.split.ae = grown(s.split.as, rows*padded), grown(s.split.ae, rows*padded)
	return e.set.split16(&s.split.as[0], &s.split.ae[0], &s.a[0], rows*padded)
}

// splitB packs [depth, cols] of B as panels of 16 columns, [padded, 16] each, and returns whether all values are
// finite.
func (e *Engine) splitB(s *Scratch, b Operand, depth, padded, cols int) bool {
	size := padded * stepCols
	panels := (cols + stepCols - 1) / stepCols
	s.b = aligned(s.b, panels*size+e.set.lanes*stepCols)
	for p := range panels {
		panel, used := s.b[p*size:], min(stepCols, cols-p*stepCols)
		e.pack(s, panel, stepCols, b.From(0, p*stepCols), depth, used)
		clear(panel[depth*stepCols : size])
		for l := 0; l < depth && used < stepCols; l++ {
			clear(panel[l*stepCols+used : (l+1)*stepCols])
		}
	}
	s.split.bs, s.split.be = grown(s.split.bs, panels*size), grown(s.split.be, panels*size)
	return e.set.split16(&s.split.bs[0], &s.split.be[0], &s.b[0], panels*size)
}

// stepTile is chains over one block of k.
type stepTile struct {
	c                 []float32
	ldc               int
	rows, cols, depth int
	a, b              Operand
	fresh             bool

	kernels  []stepKernel
	products int // of a step
	chain    func(acc float32, i, j, k int, a, b Operand) float32
}

// steps runs the kernels over the packed operands.
func (e *Engine) steps(s *Scratch, t stepTile, padded int) {
	most := len(t.kernels)
	s.edge = aligned(s.edge, most*stepCols)
	for i := 0; i < t.rows; i += most {
		rows := min(most, t.rows-i)
		for j := 0; j < t.cols; j += stepCols {
			cols := min(stepCols, t.cols-j)
			at, stride := t.c[i*t.ldc+j:], t.ldc
			if cols < stepCols {
				at, stride = s.edge, stepCols
				copyTile(at, stride, t.c[i*t.ldc+j:], t.ldc, rows, cols)
			}
			b := j * padded
			if !t.kernels[rows-1](padded/t.products, &s.split.as[i*padded], &s.split.ae[i*padded], padded,
				&s.split.bs[b], &s.split.be[b], &at[0], stride, t.fresh) {
				t.scalar(i, j, rows, cols)
			} else if cols < stepCols {
				copyTile(t.c[i*t.ldc+j:], t.ldc, at, stride, rows, cols)
			}
		}
	}
}

func copyTile(dst []float32, ds int, src []float32, ss, rows, cols int) {
	for i := range rows {
		copy(dst[i*ds:][:cols], src[i*ss:][:cols])
	}
}

// scalar computes rows [i, i+rows) and columns [j, j+cols) by the reference.
func (t *stepTile) scalar(i, j, rows, cols int) {
	for r := i; r < i+rows; r++ {
		for q := j; q < j+cols; q++ {
			acc := &t.c[r*t.ldc+q]
			if t.fresh {
				*acc = 0
			}
			*acc = t.chain(*acc, r, q, t.depth, t.a, t.b)
		}
	}
}

// chain16 is the scalar chain of element (i, j).
func chain16(acc float32, i, j, k int, a, b Operand) float32 {
	for from := 0; from < k; from += steps {
		var x, y [steps]float32
		for l := from; l < min(k, from+steps); l++ {
			x[l-from], y[l-from] = a.at(i, l), b.at(l, j)
		}
		acc = Step16(acc, &x, &y)
	}
	return acc
}

func grown(s []uint32, n int) []uint32 {
	if cap(s) < n {
		return make([]uint32, n)
	}
	return s[:n]
}
