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
)

func TestLayerNorm(t *testing.T) {
	for _, dtype := range dtypes {
		for _, n := range []int{1, 7, 16, 128, 700, 2056} {
			for _, layout := range []func(kernels.DType, int, int, float64) operand{normal, strided} {
				both(t, fmt.Sprint("layer norm of ", n), []operand{layout(dtype, 9, n, 1), layout(dtype, 9, n, 3), normal(dtype, 1, n, 1), normal(dtype, 1, n, 1)}, func(d kernels.Device, x []kernels.Tensor) {
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
		for range blocks(n, pageRows) {
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
	for _, x := range []kernels.Index{{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}, {Heads: 5, Dim: 128, TopK: 64, Scale: 1 / math.Sqrt(128)}, {Heads: 1, Dim: 16, TopK: 1, Scale: 1}} {
		for i, make := range []func(kernels.DType, int, int) operand{
			func(d kernels.DType, rows, cols int) operand { return strided(d, rows, cols, 1) },
			func(d kernels.DType, rows, cols int) operand { return scarce(d, rows, cols, false) },
			func(d kernels.DType, rows, cols int) operand { return scarce(d, rows, cols, true) },
		} {
			choose := func(name string, l *kernels.Layout, keys, pageRows int) {
				rows := l.Rows()
				both(t, fmt.Sprintf("%s %+v, values %d", name, x, i), []operand{ints(rows, x.TopK, below(rows*x.TopK, 9)), make(kernels.BF16, rows, x.Heads*x.Dim), make(kernels.F32, rows, x.Heads), make(kernels.BF16, keys, x.Dim)},
					func(d kernels.Device, t []kernels.Tensor) {
						d.(kernels.SparseAttention).SelectKeys(t[0], t[1], t[2], kernels.KV{K: t[3], PageRows: pageRows}, l, x)
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
	both(t, "long", []operand{ints(4, x.TopK, below(4*x.TopK, 9)), normal(kernels.BF16, 4, x.Heads*x.Dim, 1), normal(kernels.F32, 4, x.Heads, 1), normal(kernels.BF16, pages*64, x.Dim, 1)},
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
	return kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dims[0], ValueDim: dims[1], Scale: 1 / math.Sqrt(float64(dims[0]))}
}

// sparseLayer compares attention to lists and its gradient on packed sequences.
func sparseLayer(t *testing.T, dims, heads [2]int, topK int, near bool) {
	t.Helper()
	a := latentShape(dims, heads)
	l, rows, _ := attend([]int{1, 64, 150, 7}, 0)
	q, k, v, o := a.Heads*dims[0], a.KVHeads*dims[0], a.KVHeads*dims[1], a.Heads*dims[1]
	both(t, fmt.Sprintf("%+v, lists of %d", a, topK), []operand{normal(kernels.BF16, rows, o, 1), normal(kernels.F32, rows, a.Heads, 1), strided(kernels.BF16, rows, q, 1), strided(kernels.BF16, rows, k, 1), normal(kernels.BF16, rows, v, 1),
		lists(l, topK, near), strided(kernels.BF16, rows, o, 1), normal(kernels.BF16, rows, q, 1), strided(kernels.BF16, rows, k, 1), normal(kernels.BF16, rows, v, 1)},
		func(d kernels.Device, x []kernels.Tensor) {
			kv, s := kernels.KV{K: x[3], V: x[4]}, d.(kernels.SparseAttention)
			s.SparseAttend(x[0], x[1], x[2], kv, x[5], l, a)
			s.SparseAttendBackward(x[7], x[8], x[9], x[6], x[0], x[1], x[2], kv, x[5], l, a)
		})
}

// Every width, groups, lists that end anywhere in a block or a step.
func TestSparseAttention(t *testing.T) {
	for _, dims := range headDimsLatent[:3] {
		sparseLayer(t, dims, [2]int{3, 3}, 66, false)
		sparseLayer(t, dims, [2]int{4, 2}, 8, true)
		sparseLayer(t, dims, [2]int{7, 1}, 130, false)
	}
}

// Work that is cut into calls, of a tile each and of a few.
func TestSparseCalls(t *testing.T) {
	d := card.(*Device)
	defer func(room int) { d.room = room }(d.room)
	x := kernels.Index{Heads: 3, Dim: 16, TopK: 7, Scale: 0.25}
	for _, room := range []int{1, 200 << 10} {
		d.room = room
		sparseLayer(t, headDimsLatent[0], [2]int{4, 2}, 66, false)
		l, rows, _ := attend([]int{5, 150, 64, 90}, 0)
		both(t, "choice", []operand{ints(rows, x.TopK, below(rows*x.TopK, 9)), normal(kernels.BF16, rows, x.Heads*x.Dim, 1), normal(kernels.F32, rows, x.Heads, 1), normal(kernels.BF16, rows, x.Dim, 1)},
			func(d kernels.Device, t []kernels.Tensor) {
				d.(kernels.SparseAttention).SelectKeys(t[0], t[1], t[2], kernels.KV{K: t[3]}, l, x)
			})
	}
}

// The cache of pages: cuts of a prefill and single rows at the ends of long sequences, lists with gaps wider than what a block holds, and lists of neighbours.
func TestSparseCached(t *testing.T) {
	for i, dims := range headDimsLatent[:3] {
		a := latentShape(dims, [2]int{2, 2})
		check := func(name string, l *kernels.Layout, pages, pageRows, topK int, near bool) {
			rows, k, v := l.Rows(), a.KVHeads*dims[0], a.KVHeads*dims[1]
			both(t, fmt.Sprintf("%s %+v", name, a), []operand{normal(kernels.BF16, rows, a.Heads*dims[1], 1), normal(kernels.F32, rows, a.Heads, 1), normal(kernels.BF16, rows, a.Heads*dims[0], 1),
				normal(kernels.BF16, pages*pageRows, k, 1), strided(kernels.BF16, pages*pageRows, v, 1), lists(l, topK, near)},
				func(d kernels.Device, x []kernels.Tensor) {
					d.(kernels.SparseAttention).SparseAttend(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4], PageRows: pageRows}, x[5], l, a)
				})
		}
		l, _, pages := attend([]int{1, 1, 40, 100}, 16)
		check("prefill", l, pages, 16, 30, i == 1)
		l, pages = decoded(48, 1, 64, 700, 5000)
		check("decoded", l, pages, 48, []int{2048, 100, 640}[i], false)
		wide := &kernels.Layout{Spans: []kernels.Span{{Rows: 70, Pos: 3000}}, Packs: []int32{0, 70}}
		for p := range blocks(3070, 64) {
			wide.Spans[0].Pages = append(wide.Spans[0].Pages, int32(p))
		}
		check("wide gaps", wide, blocks(3070, 64), 64, 48, false)
	}
}

// Lists that are longer than a split, of one and of several.
func TestSparseSplits(t *testing.T) {
	def := card.Definition()
	def.KeySplit = 192
	by(t, def, map[string]func(*testing.T){"Cached": TestSparseCached, "Composition": TestSparseComposition}, func() {})
}

// Lists of all keys are dense attention on the card too, and another list is another result: the comparison can fail.
func TestSparseAllKeys(t *testing.T) {
	a := latentShape(headDimsLatent[0], [2]int{2, 2})
	l, rows, _ := attend([]int{70, 130}, 0)
	operands := []operand{normal(kernels.BF16, rows, 2*a.ValueDim, 1), normal(kernels.F32, rows, 2, 1), normal(kernels.BF16, rows, 2*a.HeadDim, 1), normal(kernels.BF16, rows, 2*a.HeadDim, 1), normal(kernels.BF16, rows, 2*a.ValueDim, 1),
		lists(l, 130, false)}
	dense := func(d kernels.Device, x []kernels.Tensor) {
		d.Attention(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, l, a)
	}
	sparse := func(d kernels.Device, x []kernels.Tensor) {
		d.(kernels.SparseAttention).SparseAttend(x[0], x[1], x[2], kernels.KV{K: x[3], V: x[4]}, x[5], l, a)
	}
	if n, at := differences(t, operands, dense, sparse); n > 0 {
		t.Errorf("lists of all keys: %d bytes differ, first %s", n, at)
	}
	operands[5] = lists(l, 100, false)
	if n, _ := differences(t, operands, dense, sparse); n == 0 {
		t.Error("lists of some keys are not noticed")
	}
}

// A row chooses and attends alike alone and among others, whatever the cut of the batch.
func TestSparseComposition(t *testing.T) {
	a, x := latentShape(headDimsLatent[0], [2]int{2, 2}), kernels.Index{Heads: 3, Dim: 16, TopK: 20, Scale: 0.25}
	const n, pageRows = 150, 16
	r := rand.New(rand.NewPCG(71, 72))
	q, k, v := normal(kernels.BF16, n, 2*a.HeadDim, 1), normal(kernels.BF16, n, 2*a.HeadDim, 1), normal(kernels.BF16, n, 2*a.ValueDim, 1)
	iq, ik, w := scarce(kernels.BF16, n, 48, false), scarce(kernels.BF16, n, 16, false), scarce(kernels.F32, n, 3, false)
	span := kernels.Span{}
	for range blocks(n, pageRows) {
		span.Pages = append(span.Pages, int32(len(span.Pages)))
	}
	run := func(cut func() int) []byte {
		on := func(o operand) kernels.Tensor {
			view, _ := o.on(card)
			return view
		}
		d := card.(kernels.SparseAttention)
		out, lse, picks := on(normal(kernels.BF16, n, 2*a.ValueDim, 0)), on(normal(kernels.F32, n, 2, 0)), on(ints(n, x.TopK, below(n*x.TopK, 2)))
		tensors := []kernels.Tensor{on(q), on(k), on(v), on(iq), on(ik), on(w)}
		for at := 0; at < n; {
			to := min(n, at+cut())
			s := span
			s.Pos, s.Rows = at, to-at
			l := &kernels.Layout{Spans: []kernels.Span{s}, Packs: []int32{0, int32(to - at)}}
			rows := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(at, to) }
			d.SelectKeys(rows(picks), rows(tensors[3]), rows(tensors[5]), kernels.KV{K: tensors[4], PageRows: pageRows}, l, x)
			d.SparseAttend(rows(out), rows(lse), rows(tensors[0]), kernels.KV{K: tensors[1], V: tensors[2], PageRows: pageRows}, rows(picks), l, a)
			at = to
		}
		raw := make([]byte, out.Bytes())
		card.Read(raw, out)
		return raw
	}
	want := run(func() int { return n })
	for name, cut := range map[string]func() int{"single rows": func() int { return 1 }, "any cuts": func() int { return 1 + r.IntN(70) }} {
		if !slices.Equal(run(cut), want) {
			t.Errorf("%s: other bits than the whole sequence", name)
		}
	}
}

// Shapes are tried against the CPU when a model is built: those of the goldens and of GLM-5 are admitted, others and kernels of another definition are not.
func TestAttendsSparsely(t *testing.T) {
	glm5 := latentShape(headDimsLatent[2], [2]int{64, 64})
	indexer := kernels.Index{Heads: 32, Dim: 128, TopK: 2048, Scale: 1 / math.Sqrt(128)}
	d := untried(t)
	tiny := latentShape(headDimsLatent[0], [2]int{4, 4})
	for _, a := range []kernels.Attn{glm5, tiny} {
		for _, x := range []kernels.Index{indexer, {Heads: 16, Dim: 16, TopK: 8, Scale: 0.25}} {
			if err := d.AttendsSparsely(a, x); err != nil {
				t.Errorf("%+v, %+v: %v", a, x, err)
			}
		}
	}
	indexer.Dim = 64
	if err := d.AttendsSparsely(glm5, indexer); err == nil || !strings.Contains(err.Error(), "32 heads of 64 yet") {
		t.Errorf("%+v: %v", indexer, err)
	}
	indexer.Dim = 128
	d.shapes, d.def.Exp2 = map[string]error{}, map[kernels.Exp2Mode]kernels.Exp2Mode{kernels.Exp2Poly: kernels.Exp2Ex2h, kernels.Exp2Ex2h: kernels.Exp2Poly}[d.def.Exp2]
	if err := d.AttendsSparsely(tiny, indexer); err == nil || !strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
