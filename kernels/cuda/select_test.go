//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

func TestLayerNorm(t *testing.T) {
	for _, dtype := range dtypes {
		for _, n := range []int{1, 7, 16, 128, 700, 2056} {
			for _, layout := range []func(kernels.DType, int, int, float64) operand{normal, strided} {
				both(t, fmt.Sprint("layer norm of ", n), []operand{layout(dtype, 9, n, 1), layout(dtype, 9, n, 3),
					normal(dtype, 1, n, 1), normal(dtype, 1, n, 1)}, func(d kernels.Device, x []kernels.Tensor) {
					d.(kernels.SparseAttention).LayerNorm(x[0], x[1], x[2], x[3], 1e-6)
					d.(kernels.SparseAttention).LayerNorm(x[1], x[1], x[2], x[3], 1e-6)
				})
			}
		}
	}
}

// scarce is values of three kinds, so that ties are common; some are infinite or NaN with `wild`.
func scarce(dtype kernels.DType, rows, cols int, wild bool) operand {
	o := normal(dtype, rows, cols, 1)
	size := dtype.Size()
	for i := range rows * cols {
		v := float32(rng.IntN(3) - 1)
		if wild && rng.IntN(5*rows*cols/100+1) == 0 {
			v = []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}[rng.IntN(3)]
		}
		if dtype == kernels.BF16 {
			binary.LittleEndian.PutUint16(o.raw[i*size:], kernels.RoundBF16(v))
		} else {
			binary.LittleEndian.PutUint32(o.raw[i*size:], math.Float32bits(v))
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
		rng.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
		l.Spans = append(l.Spans, s)
	}
	l.Packs = []int32{0, int32(len(lengths))}
	return l, pages
}

// Choices of packed sequences, of cached ones and of single rows, with ties, infinities and NaN.
func TestSparseSelectKeys(t *testing.T) {
	for _, x := range []kernels.Index{{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}, {Heads: 5, Dim: 128, TopK: 64,
		Scale: 1 / math.Sqrt(128)}, {Heads: 1, Dim: 16, TopK: 1, Scale: 1}} {
		for i, make := range []func(kernels.DType, int, int) operand{
			func(d kernels.DType, rows, cols int) operand { return strided(d, rows, cols, 1) },
			func(d kernels.DType, rows, cols int) operand { return scarce(d, rows, cols, false) },
			func(d kernels.DType, rows, cols int) operand { return scarce(d, rows, cols, true) },
		} {
			choose := func(name string, l *kernels.Layout, keys, pageRows int) {
				rows := l.Rows()
				both(t, fmt.Sprintf("%s %+v, values %d", name, x, i),
					[]operand{ints(rows, x.TopK, below(rows*x.TopK, 9)), make(kernels.BF16, rows, x.Heads*x.Dim),
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
	both(t, "long", []operand{ints(4, x.TopK, below(4*x.TopK, 9)), normal(kernels.BF16, 4, x.Heads*x.Dim, 1),
		normal(kernels.F32, 4, x.Heads, 1), normal(kernels.BF16, pages*64, x.Dim, 1)},
		func(d kernels.Device, t []kernels.Tensor) {
			d.(kernels.SparseAttention).SelectKeys(t[0], t[1], t[2], kernels.KV{K: t[3], PageRows: 64}, l, x)
		})
}

// lists is min(topK, i+1) keys for every row: any, or with `near` those around a place that neighbours share.
func lists(l *kernels.Layout, topK int, near bool) operand {
	v := make([]int32, l.Rows()*topK)
	for i := range v {
		v[i] = -1
	}
	for _, s := range l.Spans {
		for i := range s.Rows {
			keys := s.Pos + i + 1
			list := rng.Perm(keys)
			if near {
				slices.SortFunc(list, func(a, b int) int { return min(a%97, (keys-a)/3) - min(b%97, (keys-b)/3) })
			}
			list = list[:min(topK, keys)]
			slices.Sort(list)
			for n, j := range list {
				v[(s.Row+i)*topK+n] = int32(j)
			}
		}
	}
	return ints(l.Rows(), topK, v)
}

func latentShape(dims [2]int, heads [2]int) kernels.Attn {
	return kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dims[0], ValueDim: dims[1],
		Scale: 1 / math.Sqrt(float64(dims[0]))}
}

// Work that is cut into calls, of a tile each and of a few.
func TestSparseSelectCalls(t *testing.T) {
	d := card.(*Device)
	defer func(room int) { d.ChunkBytes = room }(d.ChunkBytes)
	x := kernels.Index{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}
	for _, room := range []int{1, 200 << 10} {
		d.ChunkBytes = room
		l, rows, _ := attend([]int{5, 150, 64, 90}, 0)
		both(t, "choice", []operand{ints(rows, x.TopK, below(rows*x.TopK, 9)), normal(kernels.BF16, rows, x.Heads*x.Dim,
			1), normal(kernels.F32, rows, x.Heads, 1), normal(kernels.BF16, rows, x.Dim, 1)},
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
	on := func(o operand) kernels.Tensor {
		view, _ := o.on(card)
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
		picks := on(ints(n, x.TopK, below(n*x.TopK, 2)))
		for at := 0; at < n; {
			to := min(n, at+cut())
			s := span
			s.Pos, s.Rows = at, to-at
			l := &kernels.Layout{Spans: []kernels.Span{s}, Packs: []int32{0, int32(to - at)}}
			card.(kernels.SparseAttention).SelectKeys(picks.RowRange(at, to), q.RowRange(at, to), w.RowRange(at, to),
				kernels.KV{K: k, PageRows: pageRows}, l, x)
			at = to
		}
		raw := make([]byte, picks.Bytes())
		card.Read(raw, picks)
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

// Shapes are tried against the CPU when a model is built: those of the goldens and of GLM-5 are admitted where they are
// absorbed, others and kernels of another definition are not.
func TestAttendsSparsely(t *testing.T) {
	glm5, tiny := absorbedShape([2]int{576, 512}, 64), absorbedShape([2]int{40, 32}, 4)
	indexer := kernels.Index{Heads: 32, Dim: 128, TopK: 2048, Scale: 1 / math.Sqrt(128)}
	d := untried(t)
	for _, a := range []kernels.Attn{glm5, tiny} {
		for _, x := range []kernels.Index{indexer, {Heads: 16, Dim: 16, TopK: 8, Scale: 0.25}} {
			if err := d.AttendsSparsely(a, x); err != nil {
				t.Errorf("%+v, %+v: %v", a, x, err)
			}
		}
	}
	narrow := indexer
	narrow.Dim = 64
	if err := d.AttendsSparsely(glm5, narrow); err == nil || !strings.Contains(err.Error(), "32 heads of 64 yet") {
		t.Errorf("%+v: %v", narrow, err)
	}
	d.Def.Latent = kernels.LatentExpanded
	for _, a := range []kernels.Attn{latentShape([2]int{256, 256}, [2]int{64, 64}), latentShape([2]int{24, 16},
		[2]int{1, 1})} {
		for what, err := range map[string]error{"attention": d.AttendsSparsely(a, indexer),
			"what an indexer learns": d.LearnsIndex(a, indexer)} {
			if err == nil || !strings.Contains(err.Error(), `this model needs definition.latent = "absorbed" or `+
				`"auto", not "expanded"`) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, expanded %+v: %v", what, a, err)
			}
		}
	}
	d.shapes, d.Def.Latent, d.Def.Exp2 = map[string]error{}, kernels.LatentAuto,
		map[kernels.Exp2Mode]kernels.Exp2Mode{kernels.Exp2Poly: kernels.Exp2Ex2h,
			kernels.Exp2Ex2h: kernels.Exp2Poly}[d.Def.Exp2]
	if err := d.AttendsSparsely(tiny, indexer); err == nil ||
		!strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
