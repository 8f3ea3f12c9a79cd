//go:build cuda

package attention

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// scarce is values of three kinds, so that ties are common; some are infinite or NaN with `wild`.
func scarce(dtype kernels.DType, rows, cols int, wild bool) cudatest.Operand {
	o := cudatest.Normal(dtype, rows, cols, 1)
	size := dtype.Size()
	for i := range rows * cols {
		v := float32(cudatest.Rand.IntN(3) - 1)
		if wild && cudatest.Rand.IntN(5*rows*cols/100+1) == 0 {
			v = []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}[cudatest.Rand.IntN(3)]
		}
		if dtype == kernels.BF16 {
			binary.LittleEndian.PutUint16(o.Raw[i*size:], kernels.RoundBF16(v))
		} else {
			binary.LittleEndian.PutUint32(o.Raw[i*size:], math.Float32bits(v))
		}
	}
	return o
}

// decoded is single rows at the ends of sequences of some lengths, keys in pages.
func decoded(pageRows int, lengths ...int) (l *kernels.Layout, pages int) {
	l = &kernels.Layout{}
	for i, n := range lengths {
		s := kernels.Span{Row: i, Rows: 1, Pos: n - 1}
		for range driver.Blocks(n, pageRows) {
			s.Pages = append(s.Pages, int32(pages))
			pages++
		}
		cudatest.Rand.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
		l.Spans = append(l.Spans, s)
	}
	l.Segments = []int32{0, int32(len(lengths))}
	return l, pages
}

// Choices of packed sequences, of cached ones and of single rows, with ties, infinities and NaN.
func TestSparseSelectKeys(t *testing.T) {
	for _, x := range []kernels.Index{{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}, {Heads: 5, Dim: 128, TopK: 64,
		Scale: 1 / math.Sqrt(128)}, {Heads: 1, Dim: 16, TopK: 1, Scale: 1}} {
		for i, make := range []func(kernels.DType, int, int) cudatest.Operand{
			func(d kernels.DType, rows, cols int) cudatest.Operand { return cudatest.Strided(d, rows, cols, 1) },
			func(d kernels.DType, rows, cols int) cudatest.Operand { return scarce(d, rows, cols, false) },
			func(d kernels.DType, rows, cols int) cudatest.Operand { return scarce(d, rows, cols, true) },
		} {
			choose := func(name string, l *kernels.Layout, keys, pageRows int) {
				rows := l.Rows()
				cudatest.Both(t, fmt.Sprintf("%s %+v, values %d", name, x, i),
					[]cudatest.Operand{cudatest.Ints(rows, x.TopK, cudatest.Below(rows*x.TopK, 9)),
						make(kernels.BF16, rows, x.Heads*x.Dim),
						make(kernels.F32, rows, x.Heads), make(kernels.BF16, keys, x.Dim)},
					func(d kernels.Device, t []kernels.Tensor) {
						d.(kernels.SparseAttention).SelectKeys(t[0], t[1], t[2],
							kernels.KV{K: t[3], PageRows: pageRows}, l, x)
					})
			}
			l, rows, _ := attend([]int{1, 64, 7, 300, 65}, 0)
			choose("packed", l, rows, 0)
			const pageRows = 16
			l, _, pages := attend([]int{1, 40, 3, 100}, pageRows)
			choose("paged", l, pages*pageRows, pageRows)
			l, pages = decoded(48, 1, 8, 64, 65, 700, 3000)
			choose("decoded", l, pages*48, 48)
		}
	}
}

// Rows at the ends of long sequences.
func TestSparseSelectLong(t *testing.T) {
	x := kernels.Index{Heads: 2, Dim: 16, TopK: 2048, Scale: 0.25}
	l, pages := decoded(64, 131072, 2049, 2048, 40000)
	cudatest.Both(t, "long", []cudatest.Operand{cudatest.Ints(4, x.TopK, cudatest.Below(4*x.TopK, 9)),
		cudatest.Normal(kernels.BF16, 4, x.Heads*x.Dim, 1),
		cudatest.Normal(kernels.F32, 4, x.Heads, 1), cudatest.Normal(kernels.BF16, pages*64, x.Dim, 1)},
		func(d kernels.Device, t []kernels.Tensor) {
			d.(kernels.SparseAttention).SelectKeys(t[0], t[1], t[2], kernels.KV{K: t[3], PageRows: 64}, l, x)
		})
}

func latentShape(dims [2]int, heads [2]int) kernels.Attn {
	return kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dims[0], ValueDim: dims[1],
		Scale: 1 / math.Sqrt(float64(dims[0]))}
}

// Work that is cut into calls, of a tile each and of a few.
func TestSparseSelectCalls(t *testing.T) {
	d := cudatest.GPU
	defer func(room int) { d.ChunkBytes = room }(d.ChunkBytes)
	x := kernels.Index{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}
	for _, room := range []int{1, 200 << 10} {
		d.ChunkBytes = room
		l, rows, _ := attend([]int{5, 150, 64, 90}, 0)
		cudatest.Both(t, "choice", []cudatest.Operand{cudatest.Ints(rows, x.TopK, cudatest.Below(rows*x.TopK, 9)),
			cudatest.Normal(kernels.BF16, rows, x.Heads*x.Dim,
				1), cudatest.Normal(kernels.F32, rows, x.Heads, 1), cudatest.Normal(kernels.BF16, rows, x.Dim, 1)},
			func(d kernels.Device, t []kernels.Tensor) {
				d.(kernels.SparseAttention).SelectKeys(t[0], t[1], t[2], kernels.KV{K: t[3]}, l, x)
			})
	}
}

// A row chooses alike alone and among others, whatever the cut of the batch; other pages are another choice: the
// comparison can fail.
func TestSparseSelectComposition(t *testing.T) {
	const n, pageRows = 150, 16
	x, r := kernels.Index{Heads: 3, Dim: 16, TopK: 20, Scale: 0.25}, rand.New(rand.NewPCG(71, 72))
	on := func(o cudatest.Operand) kernels.Tensor {
		view, _ := o.On(cudatest.Card)
		return view
	}
	q, k, w := on(scarce(kernels.BF16, n, x.Heads*x.Dim, false)),
		on(scarce(kernels.BF16, driver.Blocks(n, pageRows)*pageRows,
			x.Dim, false)), on(scarce(kernels.F32, n, x.Heads, false))
	span := kernels.Span{}
	for range driver.Blocks(n, pageRows) {
		span.Pages = append(span.Pages, int32(len(span.Pages)))
	}
	run := func(cut func() int) []byte {
		indices := on(cudatest.Ints(n, x.TopK, cudatest.Below(n*x.TopK, 2)))
		for at := 0; at < n; {
			to := min(n, at+cut())
			s := span
			s.Pos, s.Rows = at, to-at
			l := &kernels.Layout{Spans: []kernels.Span{s}, Segments: []int32{0, int32(to - at)}}
			cudatest.Card.(kernels.SparseAttention).SelectKeys(indices.RowRange(at, to), q.RowRange(at, to),
				w.RowRange(at, to),
				kernels.KV{K: k, PageRows: pageRows}, l, x)
			at = to
		}
		raw := make([]byte, indices.Bytes())
		cudatest.Card.Read(raw, indices)
		return raw
	}
	whole := func() int { return n }
	want := run(whole)
	for name, cut := range map[string]func() int{"single rows": func() int {
		return 1
	}, "any cuts": func() int { return 1 + r.IntN(70) }} {
		if !slices.Equal(run(cut), want) {
			t.Errorf("%s: another choice than in the whole sequence", name)
		}
	}
	slices.Reverse(span.Pages)
	if slices.Equal(run(whole), want) {
		t.Error("other pages are not noticed")
	}
}
