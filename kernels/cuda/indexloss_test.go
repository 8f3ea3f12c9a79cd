//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"lockstep/kernels"
)

func TestLayerNormBackward(t *testing.T) {
	packs := []int32{0, 1, 66, 150}
	for _, dtype := range dtypes {
		for _, n := range []int{1, 7, 16, 128, 700, 2056} {
			for _, layout := range []func(kernels.DType, int, int, float64) operand{normal, strided} {
				operands := []operand{layout(dtype, 150, n, 1), layout(dtype, 150, n, 1), layout(dtype, 150, n, 3),
					normal(dtype, 1, n, 1), normal(kernels.F32, 1, n, 1), normal(kernels.F32, 1, n, 1)}
				both(t, fmt.Sprint("layer norm backward of ", n), operands, func(d kernels.Device, x []kernels.Tensor) {
					s := d.(kernels.IndexLearning)
					s.LayerNormBackward(x[0], x[4], x[5], x[1], x[2], x[3], 1e-6, packs)
					s.LayerNormBackward(x[1], x[4], x[5], x[1], x[2], x[3], 1e-6, packs)
				})
			}
		}
	}
}

// targets is what layers before may have given entries: nothing, less than a normal number, or much.
func targets(rows, cols int) operand {
	o := strided(kernels.F32, rows, cols, 0)
	for i := range rows * o.stride {
		v := []float32{0, 1e-41, float32(rng.ExpFloat64()), float32(rng.ExpFloat64() * 1e-30)}[rng.IntN(4)]
		binary.LittleEndian.PutUint32(o.raw[4*i:], math.Float32bits(v))
	}
	return o
}

// lesson is operands of what an indexer learns: of lists unless topK is 0, with queries and keys of three values where
// scarcely, so that products are often 0.
type lesson struct {
	l      *kernels.Layout
	a      kernels.Attn
	x      kernels.Index
	topK   int
	scarce bool
}

// operands are target, loss, dq, dk, dweights, a target to learn from; queries, keys and lse of attention; queries,
// keys, weights of the indexer; lists.
func (c lesson) operands() []operand {
	rows, a, x, any := c.l.Rows(), c.a, c.x, strided
	if c.scarce {
		any = func(d kernels.DType, rows, cols int, _ float64) operand { return scarce(d, rows, cols, false) }
	}
	entries := longest(c.l)
	if c.topK > 0 {
		entries = c.topK
	}
	const bf16, f32 = kernels.BF16, kernels.F32
	return []operand{targets(rows, entries), normal(f32, 1, rows, 1), strided(bf16, rows, x.Heads*x.Dim, 1),
		strided(bf16, rows, x.Dim, 1), strided(f32, rows, x.Heads, 1), targets(rows, entries),
		any(bf16, rows, a.Heads*a.HeadDim, 1), any(bf16, rows, a.KVHeads*a.HeadDim, 1), strided(f32, rows, a.Heads, 8),
		any(bf16, rows, x.Heads*x.Dim, 1), any(bf16, rows, x.Dim, 1), any(f32, rows, x.Heads, 1),
		lists(c.l, max(c.topK, 1), false)}
}

// run is one device's.
func (c lesson) run(d kernels.Device, t []kernels.Tensor) {
	picks, s := t[12], d.(kernels.IndexLearning)
	if c.topK == 0 {
		picks = kernels.Tensor{}
	}
	s.IndexTarget(t[0], t[6], t[7], t[8], picks, c.l, c.a)
	s.IndexTarget(t[5], t[6], t[7], t[8], picks, c.l, c.a)
	s.IndexLoss(t[1], t[5], t[9], t[11], t[10], picks, c.l, c.x, 0.3)
	s.IndexBackward(t[2], t[3], t[4], t[5], t[9], t[11], t[10], picks, c.l, c.x)
}

var indexers = []kernels.Index{
	{Heads: 3, Dim: 16, Scale: 0.25}, {Heads: 5, Dim: 128, Scale: 1 / math.Sqrt(128)}, {Heads: 64, Dim: 16, Scale: 1},
	{Heads: 1, Dim: 128, Scale: 0.1},
}

// Every width of heads, lists that end anywhere in a block or a step and all keys, sequences of one row and more.
func TestIndexLesson(t *testing.T) {
	for i, x := range indexers {
		a := absorbedShape(headDimsAbsorbed[i%3], []int{3, 4, 7, 64}[i])
		for _, topK := range []int{0, 8, 66, 130} {
			l, _, _ := attend([]int{1, 64, 150, 7, 65}, 0)
			c := lesson{l, a, x, topK, false}
			both(t, fmt.Sprintf("%+v, %+v, lists of %d", a, x, topK), c.operands(), c.run)
		}
	}
}

// Heads of attention, few and more than a block takes.
func TestIndexLessonHeads(t *testing.T) {
	for i, heads := range []int{4, 66, 20} {
		for _, topK := range []int{0, 40} {
			l, _, _ := attend([]int{1, 70, 33}, 0)
			c := lesson{l, absorbedShape(headDimsAbsorbed[i], heads), indexers[0], topK, false}
			both(t, fmt.Sprintf("%+v, lists of %d", c.a, topK), c.operands(), c.run)
		}
	}
}

// Products of 0, through which nothing goes back, and scores that are equal.
func TestIndexLessonTies(t *testing.T) {
	l, _, _ := attend([]int{70, 33}, 0)
	for i, x := range indexers[:2] {
		for _, topK := range []int{0, 20} {
			c := lesson{l, absorbedShape(headDimsAbsorbed[i], 4), x, topK, true}
			both(t, fmt.Sprintf("%+v, lists of %d", x, topK), c.operands(), c.run)
		}
	}
}

// Trees of more than one round of lanes.
func TestIndexLessonLong(t *testing.T) {
	for _, topK := range []int{0, 600} {
		c := lesson{&kernels.Layout{Spans: []kernels.Span{{Rows: 700}}, Packs: []int32{0, 700}},
			absorbedShape(headDimsAbsorbed[0], 1), indexers[0], topK, false}
		both(t, fmt.Sprintf("700 rows, lists of %d", topK), c.operands(), c.run)
	}
}

// Work that is cut into calls, of a tile each and of a few.
func TestIndexLessonCalls(t *testing.T) {
	d := card.(*Device)
	defer func(room int) { d.ChunkBytes = room }(d.ChunkBytes)
	l, _, _ := attend([]int{5, 150, 64, 90}, 0)
	for _, room := range []int{1, 200 << 10} {
		d.ChunkBytes = room
		for _, topK := range []int{0, 66} {
			c := lesson{l, absorbedShape(headDimsAbsorbed[0], 4), indexers[0], topK, false}
			both(t, fmt.Sprintf("room for %d, lists of %d", room, topK), c.operands(), c.run)
		}
	}
}

// Lists of all keys are no lists, to the bit, and others are another result: the comparison can fail.
func TestIndexLessonAllKeys(t *testing.T) {
	l, _, _ := attend([]int{70, 130}, 0)
	all := lesson{l, absorbedShape(headDimsAbsorbed[0], 2), indexers[1], 130, false}
	none := all
	none.topK = 0
	operands := all.operands()
	if n, at := differences(t, operands, none.run, all.run); n > 0 {
		t.Errorf("lists of all keys: %d bytes differ, first %s", n, at)
	}
	operands[12] = lists(l, 100, false)
	if n, _ := differences(t, operands, none.run, all.run); n == 0 {
		t.Error("lists of some keys are not noticed")
	}
}

// Sequences teach alike one by one and side by side.
func TestIndexLessonComposition(t *testing.T) {
	l, _, _ := attend([]int{149, 1, 150}, 0)
	for _, topK := range []int{0, 40} {
		c := lesson{l, absorbedShape(headDimsAbsorbed[0], 2), indexers[0], topK, false}
		alone := func(d kernels.Device, x []kernels.Tensor) {
			for _, s := range l.Spans {
				one, own := c, make([]kernels.Tensor, len(x))
				one.l = &kernels.Layout{Spans: []kernels.Span{{Rows: s.Rows}}, Packs: []int32{0, int32(s.Rows)}}
				for i, t := range x {
					if t.Rows == 1 { // the loss
						own[i] = t.ColRange(s.Row, s.Row+s.Rows)
					} else {
						own[i] = t.RowRange(s.Row, s.Row+s.Rows)
					}
				}
				one.run(d, own)
			}
		}
		if n, at := differences(t, c.operands(), alone, c.run); n > 0 {
			t.Errorf("lists of %d: %d bytes differ, first %s", topK, n, at)
		}
	}
}

// Shapes are tried against the CPU when a model is built whose indexers learn: those of the goldens and of GLM-5 are
// admitted, others and kernels of another definition are not.
func TestLearnsIndex(t *testing.T) {
	glm5, tiny := absorbedShape(headDimsAbsorbed[2], 64), absorbedShape(headDimsAbsorbed[0], 4)
	indexer := kernels.Index{Heads: 32, Dim: 128, TopK: 2048, Scale: 1 / math.Sqrt(128)}
	d := untried(t)
	for _, a := range []kernels.Attn{glm5, tiny} {
		for _, x := range []kernels.Index{indexer, {Heads: 16, Dim: 16, TopK: 8, Scale: 0.25}} {
			if err := d.LearnsIndex(a, x); err != nil {
				t.Errorf("%+v, %+v: %v", a, x, err)
			}
		}
	}
	many := indexer
	many.Heads = 128
	if err := d.LearnsIndex(glm5, many); err == nil || !strings.Contains(err.Error(), "128 heads of 128 yet") {
		t.Errorf("%+v: %v", many, err)
	}
	d.shapes, d.Def.Exp2 = map[string]error{}, map[kernels.Exp2Mode]kernels.Exp2Mode{kernels.Exp2Poly: kernels.Exp2Ex2h,
		kernels.Exp2Ex2h: kernels.Exp2Poly}[d.Def.Exp2]
	if err := d.LearnsIndex(tiny, indexer); err == nil ||
		!strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
