//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"lockstep/kernels"
)

// SparseCase is a layer of sparse attention on one sequence, whole, and with Sequences such sequences that each decode a row.
type SparseCase struct {
	Heads, HeadDim  int
	Index           kernels.Index
	Keys, Sequences int
}

// SparseCases are the shape of GLM-5.
var SparseCases = []SparseCase{
	{Heads: 64, HeadDim: 256, Index: kernels.Index{Heads: 32, Dim: 128, TopK: 2048, Scale: 1 / math.Sqrt(128)}, Keys: 65536, Sequences: 4},
}

// drift is how much of a query of the indexer its successor is: neighbours' lists of 2,048 of 32,768 keys agree for four keys in five, those 64 rows apart for one in ten,
// and 64 of them name 10,000 keys.
const drift = 0.99

// BenchSparse times the choice of keys, attention to them and dense attention of the same shape, about `each` for every line. Lists are those of queries that have
// nothing in common and of queries that drift, as in a text. Flops are those of the visible or chosen pairs.
func (d *Device) BenchSparse(each time.Duration, cases []SparseCase) (results []BenchResult) {
	for _, c := range cases {
		keep := len(d.owned)
		results = append(append(results, d.benchChosen(each, c)...), d.benchDecodeSparse(each, c))
		d.release(keep)
	}
	return results
}

func (c SparseCase) attn() kernels.Attn {
	return kernels.Attn{Heads: c.Heads, KVHeads: c.Heads, HeadDim: c.HeadDim, Scale: 1 / math.Sqrt(float64(c.HeadDim))}
}

func (d *Device) benchChosen(each time.Duration, c SparseCase) (results []BenchResult) {
	keep := len(d.owned)
	defer func() { d.release(keep) }()
	n, width, a, x, mem := c.Keys, c.Heads*c.HeadDim, c.attn(), c.Index, kernels.NewArena(d)
	q, out, kv := d.randomRows(mem, n, width), mem.New(kernels.BF16, n, width), kernels.KV{K: d.randomRows(mem, n, width), V: d.randomRows(mem, n, width)}
	lse, queries, keys := mem.New(kernels.F32, n, c.Heads), d.randomRows(mem, n, x.Heads*x.Dim), kernels.KV{K: d.randomRows(mem, n, x.Dim)}
	weights, picks := mem.New(kernels.F32, n, x.Heads), mem.New(kernels.I32, n, x.TopK)
	d.Copy(weights, queries.ColRange(0, x.Heads))
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Packs: []int32{0, int32(n)}}

	seen := float64(n) * float64(n+1) / 2
	unseen := max(float64(n-x.TopK), 0) // rows that see more than a list holds
	chosen := seen - unseen*(unseen+1)/2
	line := func(name string, pairs float64, run func()) {
		results = append(results, BenchResult{Case: name, Seconds: d.time(each, run), Flops: pairs})
	}
	size := fmt.Sprintf("%d heads of %d, %d rows", c.Heads, c.HeadDim, n)
	line("latent attention, "+size, seen*4*float64(width), func() { d.Attention(out, lse, q, kv, l, a) })
	for _, kind := range []string{"any", "drifting"} {
		if kind == "drifting" {
			d.fillDrifting(queries)
			d.Copy(weights, queries.ColRange(0, x.Heads))
		}
		line(fmt.Sprintf("choice of %d keys, %d heads of %d, %d rows, %s queries", x.TopK, x.Heads, x.Dim, n, kind), seen*2*float64(x.Heads*x.Dim),
			func() { d.SelectKeys(picks, queries, weights, keys, l, x) })
		line(fmt.Sprintf("sparse attention, %s, keys of %s queries", size, kind), chosen*4*float64(width), func() { d.SparseAttend(out, lse, q, kv, picks, l, a) })
	}
	return results
}

// benchDecodeSparse is a step of decoding, choice and attention.
func (d *Device) benchDecodeSparse(each time.Duration, c SparseCase) BenchResult {
	l := &kernels.Layout{Packs: []int32{0, int32(c.Sequences)}}
	for i := range c.Sequences {
		s := kernels.Span{Row: i, Rows: 1, Pos: c.Keys - 1}
		for p := range c.Keys / benchPage {
			s.Pages = append(s.Pages, int32(p*c.Sequences+i))
		}
		l.Spans = append(l.Spans, s)
	}
	n, rows, width, a, x, mem := c.Sequences, c.Sequences*c.Keys, c.Heads*c.HeadDim, c.attn(), c.Index, kernels.NewArena(d)
	kv := kernels.KV{K: d.randomRows(mem, rows, width), V: d.randomRows(mem, rows, width), PageRows: benchPage}
	q, out, lse := d.randomRows(mem, n, width), mem.New(kernels.BF16, n, width), mem.New(kernels.F32, n, c.Heads)
	queries, keys := d.randomRows(mem, n, x.Heads*x.Dim), kernels.KV{K: d.randomRows(mem, rows, x.Dim), PageRows: benchPage}
	weights, picks := mem.New(kernels.F32, n, x.Heads), mem.New(kernels.I32, n, x.TopK)
	d.Copy(weights, queries.ColRange(0, x.Heads))
	return BenchResult{
		Case: fmt.Sprintf("choice of %d keys and sparse attention, %d heads of %d, decoding %d sequences of %d keys", x.TopK, c.Heads, c.HeadDim, n, c.Keys),
		Seconds: d.time(each, func() {
			d.SelectKeys(picks, queries, weights, keys, l, x)
			d.SparseAttend(out, lse, q, kv, picks, l, a)
		}),
		Bytes: float64(keys.K.Bytes()) + float64(n*min(x.TopK, c.Keys)*2*width)*2,
	}
}

// fillDrifting writes rows of normal values, each near the one before, in pieces that repeat.
func (d *Device) fillDrifting(t kernels.Tensor) {
	const rows = 1024
	r := rand.New(rand.NewPCG(2, uint64(t.Len())))
	fresh, row := math.Sqrt(1-drift*drift), make([]float64, t.Cols)
	raw := make([]byte, 0, 2*rows*t.Cols)
	for i := range rows {
		for j := range row {
			row[j] = drift*row[j] + fresh*r.NormFloat64()
			if i == 0 {
				row[j] /= fresh
			}
			v := kernels.RoundBF16(float32(row[j]))
			raw = append(raw, byte(v), byte(v>>8))
		}
	}
	for at := 0; at < t.Rows; at += rows {
		to := t.RowRange(at, min(at+rows, t.Rows))
		d.Write(to, raw[:to.Bytes()])
	}
}
