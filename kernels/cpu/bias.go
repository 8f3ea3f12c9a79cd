package cpu

import (
	"fmt"
	"sort"

	"lockstep/kernels"
)

// AddBias: out[t] = round(x[t] + bias of the row's group). out, x [T, n]; bias [groups, 1, n], g nil for one group. out
// may be x.
func (d *Device) AddBias(out, x, bias kernels.Tensor, g *kernels.Groups) {
	const op = "add bias"
	mustShape(op, "out", out, x.Rows, x.Cols)
	mustBias(op, "bias", bias, x.Cols, g)
	o, in, b := d.matrix(out), d.matrix(x), d.matrix(bias)
	d.eachRow(x.Rows, x.Cols, 2, func(from, to int, buf [][]float32) {
		group, end := -1, from
		var bs []float32
		for r := from; r < to; r++ {
			if r == end {
				group, end = groupOf(g, r, to)
				bs = b.load(group, buf[1])
			}
			y := o.target(r, buf[0])
			d.vec.Add(y, in.load(r, buf[0]), bs)
			o.store(r, y)
		}
	})
}

// groupOf is the group of row r, the last one's behind all, and where its rows end, at most limit.
func groupOf(g *kernels.Groups, r, limit int) (group, end int) {
	if g == nil {
		return 0, limit
	}
	at := g.Offsets.I32s()
	group = sort.Search(g.Count, func(e int) bool { return int(at[(e+1)*g.Segments]) > r })
	if group == g.Count {
		return g.Count - 1, limit
	}
	return group, min(limit, int(at[(group+1)*g.Segments]))
}

func mustBias(op, name string, t kernels.Tensor, n int, g *kernels.Groups) {
	groups := 1
	if g != nil {
		groups = g.Count
	}
	if t.Groups != groups || t.Rows != 1 || t.Cols != n || !t.Contiguous() {
		panic(fmt.Sprintf("cpu: %s: %s is %s, want [%d, 1, %d]", op, name, t, groups, n))
	}
}

// BiasGrad: dbias F32 [groups, 1, n] += dy [T, n], for each group a sum over the rows of its segments.
func (d *Device) BiasGrad(dbias, dy kernels.Tensor, g *kernels.Groups) {
	const op = "bias gradient"
	mustBias(op, "dbias", dbias, dy.Cols, g)
	at, in, n := g.Offsets.I32s(), d.matrix(dy), dy.Cols
	if int(at[len(at)-1]) != dy.Rows {
		panic(fmt.Sprintf("cpu: %s: groups of %d rows, dy is %s", op, at[len(at)-1], dy))
	}
	d.eachColumn(n, 1+sumScratch, func(from, to int, buf [][]float32) {
		for e := range g.Count {
			own := at[e*g.Segments : (e+1)*g.Segments+1]
			sums := rowSums{all: dbias.F32s(), from: e*n + from, to: e*n + to}
			d.sumRows(sums, buf[1:], own, func(run []float32, t int) {
				d.vec.Add(run, run, in.loadPart(t, from, to, buf[0]))
			})
		}
	})
}
