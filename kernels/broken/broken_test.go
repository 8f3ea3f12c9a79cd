package broken_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/broken"
	"lockstep/kernels/cpu"
	"lockstep/quant"
)

const width = 64

// operands are random rows and the other operands of the operations.
type operands struct {
	x, w, weights, probs kernels.Tensor
	rowOf, ids           kernels.Tensor
}

func random(rng *rand.Rand, rows, cols int) kernels.Tensor {
	v := make([]float32, rows*cols)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return kernels.Wrap(v, rows, cols)
}

func draw(rows int) operands {
	rng := rand.New(rand.NewPCG(uint64(rows), 7))
	o := operands{x: random(rng, rows, width), w: random(rng, width, width)}
	o.weights, o.probs = random(rng, rows, 2), random(rng, rows, 8)
	var rowOf, ids []int32
	for r := range rows {
		rowOf, ids = append(rowOf, int32(r), int32((r+1)%rows)), append(ids, int32(r))
	}
	o.rowOf, o.ids = kernels.WrapI32(rowOf), kernels.WrapI32(ids)
	o.rowOf.Rows, o.rowOf.Cols, o.rowOf.Stride = rows, 2, 2
	return o
}

// calls has an operation for each rule that depends on the number of rows. Each returns its results.
var calls = map[kernels.Break]func(d kernels.Device, o operands) []float32{
	kernels.BreakSplitK: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		d.MatMul(out, nil, kernels.Term{X: o.x, W: o.w})
		return out.F32s()
	},
	kernels.BreakActs: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		coder := d.(kernels.QuantizedProducts)
		coder.FakeQuantize(out, o.x, quant.MXFP8)
		mem := kernels.NewArena(d)
		codes := kernels.NewQuantizedWeight(quant.FP8x128.Format(), kernels.F32, 1, o.x.Rows, width, mem.NewGrouped)
		numbers := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		coder.QuantizeRows(codes, o.x)
		coder.Dequantize(numbers, codes)
		return append(out.F32s(), numbers.F32s()...)
	},
	kernels.BreakCache: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(slices.Clone(o.x.F32s()), o.x.Rows, width)
		d.(kernels.QuantizedProducts).FakeQuantizeHeads(out, width/4)
		return out.F32s()
	},
	kernels.BreakAdapter: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		up := kernels.Term{X: o.weights, W: o.w.RowRange(0, 32).ColRange(0, 2), From: 16, To: 48}
		d.MatMul(out, nil, kernels.Term{X: o.x, W: o.w}, up)
		return out.F32s()
	},
	kernels.BreakNormRows: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		rstd := kernels.Wrap(make([]float32, o.x.Rows), 1, o.x.Rows)
		d.RMSNorm(out, rstd, o.x, o.w.RowRange(0, 1), kernels.Norm{Eps: 1e-5, PlusOne: true})
		return append(out.F32s(), rstd.F32s()...)
	},
	kernels.BreakCombine: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		d.Combine(out, o.x, o.x, o.weights, o.rowOf)
		return out.F32s()
	},
	kernels.BreakVocab: func(d kernels.Device, o operands) []float32 {
		lp := kernels.Wrap(make([]float32, o.x.Rows), 1, o.x.Rows)
		stats := kernels.Wrap(make([]float32, 2*o.x.Rows), o.x.Rows, 2)
		big := random(rand.New(rand.NewPCG(1, 1)), o.x.Rows, 3000)
		d.LogProb(lp, stats, big, o.ids, kernels.Tensor{})
		return append(lp.F32s(), stats.F32s()...)
	},
	kernels.BreakRope: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width)
		rope := kernels.Rope{Cos: o.w.ColRange(0, 8), Sin: o.w.ColRange(8, 16), HeadDim: 16}
		d.HeadNormRope(out, kernels.Tensor{}, o.x, kernels.Tensor{}, o.ids, rope, kernels.Norm{})
		return out.F32s()
	},
	kernels.BreakSinks: func(d kernels.Device, o operands) []float32 {
		out := kernels.Wrap(slices.Clone(o.x.F32s()), o.x.Rows, width)
		lse := kernels.Wrap(slices.Clone(o.weights.F32s()), o.x.Rows, 2)
		d.Sinks(out, lse, o.w.RowRange(0, 1).ColRange(0, 2))
		return append(out.F32s(), lse.F32s()...)
	},
	kernels.BreakRouterTies: func(d kernels.Device, o operands) []float32 {
		// All experts but the first have scores that four bits do not tell apart.
		for r := range o.probs.Rows {
			for e := range 8 {
				o.probs.F32s()[r*8+e] = 1 - 0.001*float32(e)
			}
		}
		return routed(d, o, kernels.Router{Scale: 1})
	},
	kernels.BreakGroupLimits: func(d kernels.Device, o operands) []float32 {
		// The second best expert is the only good one of its group.
		for r := range o.probs.Rows {
			copy(o.probs.F32s()[r*8:], []float32{3, 2, 0, 0, 2.5, -9, 0, 0})
		}
		return routed(d, o, kernels.Router{Scale: 1, Groups: 4, TopGroups: 1})
	},
}

func routed(d kernels.Device, o operands, r kernels.Router) []float32 {
	n := o.probs.Rows
	weights, probs := kernels.Wrap(make([]float32, 2*n), n, 2), kernels.Wrap(make([]float32, 8*n), n, 8)
	experts := kernels.WrapI32(make([]int32, 2*n))
	experts.Rows, experts.Cols, experts.Stride = n, 2, 2
	d.Route(weights, experts, probs, o.probs, r)
	out := slices.Clone(weights.F32s())
	for _, e := range experts.I32s() {
		out = append(out, float32(e))
	}
	return out
}

// A rule is broken in calls of few rows, and in no others; no other rule is broken with it.
func TestFewRows(t *testing.T) {
	below, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	for rule, call := range calls {
		for _, other := range kernels.Breaks {
			if rule == kernels.BreakAdapter && other == kernels.BreakSplitK {
				continue // an adapter's product is a product too
			}
			dev, err := broken.New(below, other)
			if err != nil {
				t.Fatal(err)
			}
			for _, rows := range []int{1, 4, 5} {
				same := slices.Equal(call(dev, draw(rows)), call(below, draw(rows)))
				if want := rule != other || rows > 4; same != want {
					t.Errorf("%s broken, %s on %d rows: same bits %t, want %t", other, rule, rows, same, want)
				}
			}
		}
	}
}

// The norm of a sum is broken as that of its rows.
func TestNormOfSum(t *testing.T) {
	below, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	dev, err := broken.New(below, kernels.BreakNormRows)
	if err != nil {
		t.Fatal(err)
	}
	o := draw(4) // few: the rule holds with more
	blank := func() kernels.Tensor { return kernels.Wrap(make([]float32, o.x.Len()), o.x.Rows, width) }
	want, got, sum, rstd := blank(), blank(), blank(), kernels.Wrap(make([]float32, 4), 1, 4)
	dev.Add(sum, o.x, o.x)
	dev.RMSNorm(want, rstd, sum, o.w.RowRange(0, 1), kernels.Norm{Eps: 1e-5})
	dev.AddRMSNorm(got, sum, rstd, o.x, o.x, o.w.RowRange(0, 1), kernels.Norm{Eps: 1e-5})
	if !slices.Equal(got.F32s(), want.F32s()) {
		t.Error("the norm of a sum has other bits than the norm of its rows")
	}
}

// The definition of the device names the broken rule and so has another digest. Other devices refuse such a definition.
func TestDefinition(t *testing.T) {
	below, err := cpu.New(kernels.Default(), cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	dev, err := broken.New(below, kernels.BreakRope)
	if err != nil {
		t.Fatal(err)
	}
	def := dev.Definition()
	if def.Break != kernels.BreakRope || def.Digest() == below.Definition().Digest() {
		t.Errorf("a device that breaks a rule computes by %+v", def)
	}
	if _, err := cpu.New(def, cpu.Options{}); err == nil {
		t.Error("a device of its own took a broken definition")
	}
	if _, err := broken.New(below, "nothing"); err == nil || !strings.Contains(err.Error(), "split-k") {
		t.Errorf("no such rule: %v", err)
	}
}

// listChecker wants of each list what kernels rely on: as many keys as its row sees, or as it has room for.
type listChecker struct {
	*cpu.Device
	t     *testing.T
	calls int
}

func (d *listChecker) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	d.calls++
	for _, s := range l.Spans {
		for i := range s.Rows {
			list := selected.RowRange(s.Row+i, s.Row+i+1).I32s()
			for e, key := range list[:min(len(list), s.Pos+i+1)] {
				if key < 0 || int(key) > s.Pos+i {
					d.t.Errorf("entry %d of the list at position %d is %d", e, s.Pos+i, key)
				}
			}
		}
	}
	d.Device.SparseAttend(out, lse, q, kv, selected, l, a)
}

// Sparse attention to two halves of a list is another sum of the same keys, in a cache and in a batch, where a list has
// two keys or more.
func TestSparseOrder(t *testing.T) {
	below, err := cpu.New(kernels.Default(), cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer below.Close()
	spy := &listChecker{Device: below, t: t}
	dev, err := broken.New(spy, kernels.BreakSparseOrder)
	if err != nil {
		t.Fatal(err)
	}
	o, a := draw(12), kernels.Attn{Heads: 2, KVHeads: 1, HeadDim: 32, Scale: 0.2}
	k, v := o.x.ColRange(0, 32), o.w.RowRange(0, 12).ColRange(0, 32)
	for name, c := range map[string]struct {
		kv kernels.KV
		l  kernels.Layout
	}{
		"batch": {kernels.KV{K: k, V: v}, kernels.Layout{Spans: []kernels.Span{{Rows: 1}, {Row: 1, Rows: 3}},
			Segments: []int32{0, 4}}},
		"cache": {kernels.KV{K: k, V: v, PageRows: 4}, kernels.Layout{Segments: []int32{0, 4}, Spans: []kernels.Span{
			{Rows: 1, Pages: []int32{2}}, {Row: 1, Rows: 3, Pos: 5, Pages: []int32{1, 0}}}}},
	} {
		selected := kernels.WrapI32([]int32{0, -1, -1, 0, -1, -1, 0, 1, -1, 0, 1, 2})
		if name == "cache" {
			selected = kernels.WrapI32([]int32{0, -1, -1, 0, 3, 5, 1, 2, 6, 0, 4, 7})
		}
		selected.Rows, selected.Cols, selected.Stride = 4, 3, 3
		q := kernels.Wrap(slices.Clone(o.w.F32s()[:4*64]), 4, 64)
		attend := func(d kernels.SparseAttention) []float32 {
			out, lse := kernels.Wrap(make([]float32, 4*64), 4, 64), kernels.Wrap(make([]float32, 8), 4, 2)
			d.SparseAttend(out, lse, q, c.kv, selected, &c.l, a)
			return append(out.F32s(), lse.F32s()...)
		}
		got, want := attend(dev), attend(below)
		different := 0
		for i, x := range got {
			if math.Abs(float64(x-want[i])) > 1e-5 {
				t.Errorf("%s: element %d is %v, want about %v", name, i, x, want[i])
			}
			if x != want[i] {
				different++
			}
		}
		if alone := got[:64]; !slices.Equal(alone, want[:64]) || different == 0 {
			t.Errorf("%s: %d elements differ, a list of one key: %v, want %v", name, different, alone, want[:64])
		}
	}
	if spy.calls == 0 {
		t.Error("the wrapped device attended to nothing")
	}
}
