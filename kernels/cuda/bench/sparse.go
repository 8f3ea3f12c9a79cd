//go:build cuda

package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
)

// SparseCase is a layer of sparse attention on one sequence, whole, and with Sequences such sequences that each decode
// a row. HeadDim is that of the expanded form, dense.
type SparseCase struct {
	Heads, HeadDim  int
	Absorbed        [2]int // columns of keys and values of the absorbed form
	Index           kernels.Index
	Keys, Sequences int
}

// SparseCases are the shape of GLM-5.
var SparseCases = []SparseCase{
	{Heads: 64, HeadDim: 256, Absorbed: [2]int{576, 512}, Index: kernels.Index{Heads: 32, Dim: 128, TopK: 2048,
		Scale: 1 / math.Sqrt(128)}, Keys: 65536, Sequences: 4},
}

// correlation is that of a query of the indexer with the one before: neighbours' lists of 2,048 of 32,768 keys agree
// for four keys in five, those 64 rows apart for one in ten, and 64 of them name 10,000 keys.
const correlation = 0.99

// Sparse times the selection of keys, attention to them, dense attention of the same heads and the indexer loss, about
// each for every line. Lists are those of independent queries and of correlated ones, as in a text. Flops are those of
// the visible or selected pairs.
func Sparse(d *cuda.Device, each time.Duration, cases []SparseCase) (results []Result) {
	for _, c := range cases {
		keep := d.Held()
		results = append(append(results, selected(d, each, c)...), decodeSparse(d, each, c))
		results = append(append(results, indexerLoss(d, each, c, c.Keys, c.Index.TopK)...),
			indexerLoss(d, each, c, c.Keys/4, 0)...)
		d.Release(keep)
	}
	return results
}

// dense is attention of the expanded form to all keys, and attn that to selected ones.
func (c SparseCase) dense() kernels.Attn {
	return kernels.Attn{Heads: c.Heads, KVHeads: c.Heads, HeadDim: c.HeadDim, Scale: 1 / math.Sqrt(float64(c.HeadDim))}
}

func (c SparseCase) attn() kernels.Attn {
	return kernels.Attn{Heads: c.Heads, KVHeads: 1, HeadDim: c.Absorbed[0], ValueDim: c.Absorbed[1],
		Scale: 1 / math.Sqrt(float64(c.HeadDim)), Latent: true}
}

// shared is keys whose first columns are the values.
func shared(k kernels.Tensor, a kernels.Attn, pageRows int) kernels.KV {
	return kernels.KV{K: k, V: k.ColRange(0, a.ValueDim), PageRows: pageRows}
}

func selected(d *cuda.Device, each time.Duration, c SparseCase) (results []Result) {
	keep := d.Held()
	defer func() { d.Release(keep) }()
	n, width, a, x, mem := c.Keys, c.Heads*c.HeadDim, c.attn(), c.Index, kernels.NewArena(d)
	q, out, kv := RandomRows(d, mem, n, width), mem.New(kernels.BF16, n, width),
		kernels.KV{K: RandomRows(d, mem, n, width), V: RandomRows(d, mem, n, width)}
	lse, queries, keys := mem.New(kernels.F32, n, c.Heads), RandomRows(d, mem, n, x.Heads*x.Dim),
		kernels.KV{K: RandomRows(d, mem, n, x.Dim)}
	weights, indices := mem.New(kernels.F32, n, x.Heads), mem.New(kernels.I32, n, x.TopK)
	d.Copy(weights, queries.ColRange(0, x.Heads))
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Segments: []int32{0, int32(n)}}
	queried, sums, latents := RandomRows(d, mem, n, c.Heads*a.HeadDim), mem.New(kernels.BF16, n, c.Heads*a.ValueDim),
		RandomRows(d, mem, n, a.HeadDim)

	visible, chosen := pairs(n, n), pairs(n, x.TopK)
	line := func(name string, pairs float64, run func()) {
		results = append(results, Result{Case: name, Seconds: Time(d, each, run), Flops: pairs})
	}
	line(fmt.Sprintf("latent attention, %d heads of %d, %d rows", c.Heads, c.HeadDim, n), visible*4*float64(width),
		func() {
			d.Attention(out, lse, q, kv, l, c.dense())
		})
	for _, kind := range []string{"independent", "correlated"} {
		if kind == "correlated" {
			fillCorrelated(d, queries)
			d.Copy(weights, queries.ColRange(0, x.Heads))
		}
		line(fmt.Sprintf("selection of %d keys, %d heads of %d, %d rows, %s queries", x.TopK, x.Heads, x.Dim, n, kind),
			visible*2*float64(x.Heads*x.Dim),
			func() { d.SelectKeys(indices, queries, weights, keys, l, x) })
		line(fmt.Sprintf("absorbed sparse attention, %d heads of %d and %d, %d rows, keys of %s queries", c.Heads,
			a.HeadDim, a.ValueDim, n, kind),
			chosen*2*float64(c.Heads*(a.HeadDim+a.ValueDim)), func() {
				d.SparseAttend(sums, lse, queried, shared(latents, a, 0), indices, l, a)
			})
	}
	return results
}

// pairs is how many keys the rows of a sequence have on lists of so many at most.
func pairs(rows, most int) float64 {
	triangle := func(n int) float64 { return float64(n) * float64(n+1) / 2 }
	return triangle(rows) - triangle(max(rows-most, 0))
}

// indexerLoss is the loss of an indexer and its gradient: on lists of correlated queries, or with topK 0 on
// all keys.
func indexerLoss(d *cuda.Device, each time.Duration, c SparseCase, n, topK int) (results []Result) {
	keep := d.Held()
	defer func() { d.Release(keep) }()
	a, x, mem := c.attn(), c.Index, kernels.NewArena(d)
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Segments: []int32{0, int32(n)}}
	q, k, lse := RandomRows(d, mem, n, c.Heads*a.HeadDim), RandomRows(d, mem, n, a.HeadDim),
		mem.Zeros(kernels.F32, n, c.Heads)
	queries, keys, weights := mem.New(kernels.BF16, n, x.Heads*x.Dim), RandomRows(d, mem, n, x.Dim),
		mem.New(kernels.F32, n, x.Heads)
	fillCorrelated(d, queries)
	d.Copy(weights, queries.ColRange(0, x.Heads))
	var indices kernels.Tensor
	entries, of := n, "all keys"
	if topK > 0 {
		entries, of = topK, fmt.Sprintf("lists of %d", topK)
		indices = mem.New(kernels.I32, n, topK)
		d.SelectKeys(indices, queries, weights, kernels.KV{K: keys}, l, x)
	}
	target, ds, loss := mem.Zeros(kernels.F32, n, entries), mem.Zeros(kernels.F32, n, entries),
		mem.New(kernels.F32, 1, n)
	dq, dk, dweights := mem.New(kernels.BF16, n, x.Heads*x.Dim), mem.New(kernels.BF16, n, x.Dim),
		mem.New(kernels.F32, n, x.Heads)
	line := func(name string, heads, dim, products int, run func()) {
		results = append(results, Result{Case: fmt.Sprintf("%s, %d heads of %d, %d rows, %s", name, heads, dim, n,
			of), Seconds: Time(d, each, run),
			Flops: pairs(n, entries) * float64(2*products*heads*dim)})
	}
	line("target of an indexer", c.Heads, a.HeadDim, 1, func() { d.IndexTarget(target, q, k, lse, indices, l, a) })
	line("loss of an indexer", x.Heads, x.Dim, 1, func() {
		d.Copy(ds, target)
		d.IndexLoss(loss, ds, queries, weights, keys, indices, l, x)
	})
	line("gradient of an indexer", x.Heads, x.Dim, 3, func() {
		d.IndexBackward(dq, dk, dweights, ds, queries, weights, keys, indices, l, x)
	})
	return results
}

// decodeSparse is a step of decoding, selection and attention.
func decodeSparse(d *cuda.Device, each time.Duration, c SparseCase) Result {
	l := &kernels.Layout{Segments: []int32{0, int32(c.Sequences)}}
	for i := range c.Sequences {
		s := kernels.Span{Row: i, Rows: 1, Pos: c.Keys - 1}
		for p := range c.Keys / pageRows {
			s.Pages = append(s.Pages, int32(p*c.Sequences+i))
		}
		l.Spans = append(l.Spans, s)
	}
	n, rows, a, x, mem := c.Sequences, c.Sequences*c.Keys, c.attn(), c.Index, kernels.NewArena(d)
	kv := shared(RandomRows(d, mem, rows, a.HeadDim), a, pageRows)
	q, out, lse := RandomRows(d, mem, n, c.Heads*a.HeadDim), mem.New(kernels.BF16, n, c.Heads*a.ValueDim),
		mem.New(kernels.F32, n, c.Heads)
	queries, keys := RandomRows(d, mem, n, x.Heads*x.Dim), kernels.KV{K: RandomRows(d, mem, rows, x.Dim),
		PageRows: pageRows}
	weights, indices := mem.New(kernels.F32, n, x.Heads), mem.New(kernels.I32, n, x.TopK)
	d.Copy(weights, queries.ColRange(0, x.Heads))
	return Result{
		Case: fmt.Sprintf("selection of %d keys and absorbed sparse attention, %d heads of %d and %d, decoding %d "+
			"sequences of %d keys", x.TopK, c.Heads, a.HeadDim, a.ValueDim, n, c.Keys),
		Seconds: Time(d, each, func() {
			d.SelectKeys(indices, queries, weights, keys, l, x)
			d.SparseAttend(out, lse, q, kv, indices, l, a)
		}),
		Bytes: float64(keys.K.Bytes()) + float64(n*min(x.TopK, c.Keys)*a.HeadDim)*2,
	}
}

// fillCorrelated writes rows of normal values, each near the one before, in pieces that repeat.
func fillCorrelated(d *cuda.Device, t kernels.Tensor) {
	const rows = 1024
	r := rand.New(rand.NewPCG(2, uint64(t.Len())))
	fresh, row := math.Sqrt(1-correlation*correlation), make([]float64, t.Cols)
	raw := make([]byte, 0, 2*rows*t.Cols)
	for i := range rows {
		for j := range row {
			row[j] = correlation*row[j] + fresh*r.NormFloat64()
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
