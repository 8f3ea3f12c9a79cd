package gemm

// Blocks of B are packed once and used by every row of A. They fit into the second-level cache together with the rows
// that are streamed through it.
const (
	blockK    = 256
	blockCols = 256
	blockRows = 112 // rows of A packed at a time, when they must be
)

// crowded is a stride in elements at which rows share one set of the first-level cache (4 KiB), which holds fewer lines
// than a kernel reads rows.
const crowded = 1024

// panel is some registers of columns of a block of B, as a kernel reads them.
type panel struct {
	col, cols int // of the block; fewer than the registers hold at the edge
	width     int // columns of the registers
	b         *float32
	stride    int
	kernels   []kernel
}

// fma continues the chains of c, [m, n], over k, or starts them from +0 if fresh.
func (e *Engine) fma(s *Scratch, c []float32, ldc, m, n, k int, a, b Operand, fresh bool) {
	for j := 0; j < n; j += blockCols {
		cols := min(blockCols, n-j)
		for l := 0; l < k; l += blockK {
			depth := min(blockK, k-l)
			e.packPanels(s, b.From(l, j), m, cols, depth)
			for i := 0; i < m; i += blockRows {
				rows := min(blockRows, m-i)
				at := e.rowMajor(s, a.From(i, l), rows, depth)
				e.strips(s, c[i*ldc+j:], ldc, rows, depth, at, fresh && l == 0)
			}
		}
	}
}

// packPanels cuts a block of B, [depth, cols], into panels for m rows.
func (e *Engine) packPanels(s *Scratch, b Operand, m, cols, depth int) {
	families := e.set.familiesFor(m)
	lanes := e.set.lanes
	s.b = aligned(s.b, e.set.roundUp(depth)*e.set.roundUp(cols))
	s.panels = s.panels[:0]
	used := 0
	for col := 0; col < cols; {
		f := families[0]
		for _, f = range families {
			if (f.vectors-1)*lanes < cols-col {
				break
			}
		}
		p := panel{col: col, cols: min(f.vectors*lanes, cols-col), width: f.vectors * lanes, kernels: f.kernels}
		if b.F != nil && b.CS == 1 && (m <= len(f.kernels) || b.RS%crowded != 0) && p.cols == p.width {
			p.b, p.stride = &b.F[col], b.RS // packing would not help
		} else {
			dst := s.b[used:]
			used += p.width * e.set.roundUp(depth)
			e.pack(s, dst, p.width, b.From(0, col), depth, p.cols)
			p.b, p.stride = &dst[0], p.width
		}
		s.panels = append(s.panels, p)
		col += p.cols
	}
}

// rowMajor is rows of A, [rows, depth], as fp32 with contiguous rows: in their place, or packed.
func (e *Engine) rowMajor(s *Scratch, a Operand, rows, depth int) View {
	if a.F != nil && a.CS == 1 && a.RS%crowded != 0 {
		return View{X: a.F, RS: a.RS, CS: 1}
	}
	stride := e.set.roundUp(depth) + alignment/4 // not a power of two, which would crowd rows into few cache sets
	s.a = aligned(s.a, stride*e.set.roundUp(rows))
	e.pack(s, s.a, stride, a, rows, depth)
	return View{X: s.a, RS: stride, CS: 1}
}

// strips runs the kernels over all panels of the block and rows of A, as many at a time as kernels take.
func (e *Engine) strips(s *Scratch, c []float32, ldc, rows, depth int, a View, fresh bool) {
	most := len(s.panels[0].kernels)
	count := (rows + most - 1) / most
	for i := range count {
		from, to := i*rows/count, (i+1)*rows/count
		for p := range s.panels {
			s.panels[p].run(s, c[from*ldc:], ldc, to-from, depth, &a.X[from*a.RS], a.RS, fresh)
		}
	}
}

// run continues the chains of one tile. Columns beyond the panel's are computed aside.
func (p *panel) run(s *Scratch, c []float32, ldc, rows, depth int, a *float32, as int, fresh bool) {
	f := p.kernels[rows-1]
	if p.cols == p.width {
		f(depth, a, as, p.b, p.stride, &c[p.col], ldc, fresh)
		return
	}
	s.edge = aligned(s.edge, rows*p.width)
	if !fresh {
		for i := range rows {
			copy(s.edge[i*p.width:], c[i*ldc+p.col:][:p.cols])
		}
	}
	f(depth, a, as, p.b, p.stride, &s.edge[0], p.width, fresh)
	for i := range rows {
		copy(c[i*ldc+p.col:][:p.cols], s.edge[i*p.width:])
	}
}
