package gemm

// tile is rows [i, i+m) and columns [j, j+n) of a product.
type tile struct {
	p          *Product
	i, j, m, n int
}

const (
	tilesPerThread = 4         // tiles that a thread gets at least, so that threads end together
	leastWork      = 512 << 10 // multiply-adds of a tile at least: some ten microseconds
	fixedRows      = 8         // reading and packing a column of B costs as much as this many rows
	fewRows        = 56        // fewer should not share a packed block of B
	mostRows       = 512       // more need not
	unitCols       = 64        // columns of a tile come in such units: full kernels
)

func (p *Product) depth() int {
	k := 0
	for _, x := range p.Pieces {
		k += x.K
	}
	return max(k, 1)
}

// cut divides products into tiles of similar work.
func cut(products []Product, threads int) []tile {
	total := 0
	for i := range products {
		p := &products[i]
		total += (p.M + fixedRows) * p.N * p.depth()
	}
	want := leastWork
	if threads > 1 {
		want = max(want, total/(tilesPerThread*threads))
	} else {
		want = max(want, total)
	}
	var tiles []tile
	for i := range products {
		tiles = products[i].cut(tiles, want)
	}
	return tiles
}

// cut divides a product into tiles of about want multiply-adds: as wide as a block of B if enough rows are left to
// share it, else narrower.
func (p *Product) cut(tiles []tile, want int) []tile {
	if p.M == 0 || p.N == 0 {
		return tiles
	}
	k := p.depth()
	cols := parts(p.N, blockCols, unitCols)
	rows := want/(k*cols) - fixedRows
	if few := min(p.M, fewRows); rows < few {
		cols = parts(p.N, max(want/(k*(few+fixedRows)), unitCols), unitCols)
		rows = few
	}
	rows = parts(p.M, min(rows, mostRows), 1)
	for j := 0; j < p.N; j += cols {
		for i := 0; i < p.M; i += rows {
			tiles = append(tiles, tile{p, i, j, min(rows, p.M-i), min(cols, p.N-j)})
		}
	}
	return tiles
}

// parts is the length of equal parts of n, about `most` long, in multiples of unit.
func parts(n, most, unit int) int {
	count := max((n+most/2)/most, 1)
	size := (n + count - 1) / count
	return (size + unit - 1) / unit * unit
}
