package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// recGrads is the gradients of a packed batch, and the dout that they come from.
type recGrads struct{ dout, dq, dk, dv, dg, db, dskip kernels.Tensor }

func (g recGrads) rows() []kernels.Tensor { return []kernels.Tensor{g.dq, g.dk, g.dv, g.dg, g.db} }

func (c *recCase) newGrads(order []int) recGrads {
	var dout []float32
	rows := 0
	for _, s := range order {
		dout = append(dout, c.dout[s]...)
		rows += c.lengths[s]
	}
	second := kernels.F32
	if c.delta {
		second = c.dtype
	}
	nq, nv := c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim
	return recGrads{
		dout: attnTensor(c.dtype, dout, rows, nv, 1), dq: attnTensor(c.dtype, nil, rows, nq, 2),
		dk: attnTensor(c.dtype, nil, rows, nq, 3),
		dv: attnTensor(c.dtype, nil, rows, nv, 4), dg: attnTensor(kernels.F32, nil, rows, c.Heads, 0),
		db:    attnTensor(second, nil, rows, c.Heads, 5),
		dskip: kernels.Wrap(make([]float32, c.Heads), 1, c.Heads),
	}
}

func (c *recCase) runBackward(dev *Device, b recBatch, g recGrads) {
	if c.delta {
		dev.DeltaRuleBackward(kernels.DeltaRuleOperands{Q: g.dq, K: g.dk, V: g.dv, G: g.dg, B: g.db}, g.dout,
			kernels.DeltaRuleOperands{Q: b.q, K: b.k, V: b.v, G: b.g, B: b.b}, b.layout, c.Recurrence)
	} else {
		dev.StateSpaceBackward(kernels.StateSpaceOperands{C: g.dq, B: g.dk, X: g.dv, G: g.dg, DT: g.db, Skip: g.dskip},
			g.dout, kernels.StateSpaceOperands{C: b.q, B: b.k, X: b.v, G: b.g, DT: b.b, Skip: b.skip}, b.layout,
			c.Recurrence)
	}
}

func (c *recCase) grads(dev *Device, order []int) (recBatch, recGrads) {
	b, g := c.pack(order), c.newGrads(order)
	c.runBackward(dev, b, g)
	return b, g
}

func TestRecurrenceBackwardEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for _, c := range recCases(rng, kind) {
			order := ints(len(c.lengths))
			b, got := c.grads(devs[0], order)
			for s, span := range b.layout.Spans {
				c.checkGrads(t, got, s, span)
			}
			for _, dev := range devs[1:] {
				_, other := c.grads(dev, order)
				for i, x := range other.rows() {
					c.checkSame(t, dev.Name(), x, got.rows()[i])
				}
				c.checkSame(t, dev.Name(), other.dskip, got.dskip)
			}
			for s, span := range b.layout.Spans {
				_, alone := c.grads(devs[len(devs)-1], []int{s})
				for i, x := range alone.rows() {
					c.checkSame(t, "alone", x, got.rows()[i].RowRange(span.Row, span.Row+span.Rows))
				}
			}
		}
	}
}

// checkGrads compares the rows of a sequence with the reference.
func (c *recCase) checkGrads(t *testing.T, got recGrads, seq int, span kernels.Span) {
	t.Helper()
	group := c.Heads / c.KeyHeads
	want := make([]*refGrads, c.Heads)
	for h := range want {
		want[h] = c.backward(seq, h)
	}
	for i := range span.Rows {
		for h, w := range want {
			c.wantHead(t, "dv", attnRow(got.dv, span.Row+i), h, w.dv[i])
			if v := attnRow(got.dg, span.Row+i)[h]; v != w.dg[i] {
				t.Fatalf("%v: dg of sequence %d position %d head %d: %v, want %v", c, seq, i, h, v, w.dg[i])
			}
			db := w.db[i]
			if c.delta {
				db = attnRound(c.dtype, db)
			}
			if v := attnRow(got.db, span.Row+i)[h]; v != db {
				t.Fatalf("%v: db of sequence %d position %d head %d: %v, want %v", c, seq, i, h, v, db)
			}
		}
		for kh := range c.KeyHeads {
			dq, dk := make([]float32, c.KeyDim), make([]float32, c.KeyDim)
			for _, w := range want[kh*group : (kh+1)*group] {
				for e := range dq {
					dq[e] += w.dq[i][e]
					dk[e] += w.dk[i][e]
				}
			}
			if c.delta {
				dq = refUnitGrad(refScaled(dq, float32(1/math.Sqrt(float64(c.KeyDim)))),
					c.part(c.q, seq, i, kh, c.KeyHeads, c.KeyDim))
				dk = refUnitGrad(dk, c.part(c.k, seq, i, kh, c.KeyHeads, c.KeyDim))
			}
			c.wantHead(t, "dq", attnRow(got.dq, span.Row+i), kh, dq)
			c.wantHead(t, "dk", attnRow(got.dk, span.Row+i), kh, dk)
		}
	}
}

// refUnitGrad propagates the gradient d of x*rs to x.
func refUnitGrad(d, x []float32) []float32 {
	rs := 1 / float32(math.Sqrt(float64(refTreeDot(x, x)+1e-6)))
	mean := refTreeDot(d, refScaled(x, rs))
	out := make([]float32, len(d))
	for i := range d {
		out[i] = rs * (d[i] - float32(float32(x[i]*rs)*mean))
	}
	return out
}

func (c *recCase) wantHead(t *testing.T, what string, row []float32, head int, want []float32) {
	t.Helper()
	for i, w := range want {
		if w = attnRound(c.dtype, w+0); math.Float32bits(w) != math.Float32bits(row[head*len(want)+i]) {
			t.Fatalf("%v: %s: head %d element %d: %v, want %v", c, what, head, i, row[head*len(want)+i], w)
		}
	}
}

// Every derivative against central differences of the plain recurrence in float64.
func TestRecurrenceGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(23, 24))
	for _, delta := range []bool{true, false} {
		c := newRecCase(rng, plainKind, delta, kernels.Recurrence{KeyHeads: 2, Heads: 4, KeyDim: 4, ValueDim: 3}, 70)
		_, g := c.grads(attnDevices(t, plainKind)[0], []int{0})
		in := c.inputs(0)
		loss := func(at int) func(p []float64) float64 {
			return func(p []float64) float64 {
				sum := 0.0
				for i, o := range c.plain(append(append(append([]float64{}, in[:at]...), p...), in[at+len(p):]...),
					70) {
					sum += o * float64(c.dout[0][i])
				}
				return sum
			}
		}
		at := 0
		for i, name := range []string{"dq", "dk", "dv", "dg", "db", "dskip"} {
			if name == "dskip" && delta {
				break
			}
			got := rowValues(append(g.rows(), g.dskip)[i])
			checkGradient(t, name, append([]float64{}, in[at:at+len(got)]...), loss(at), got)
			at += len(got)
		}
	}
}

// dskip is a sum over rows in blocks of segments that continues what is there: two segments one after the other give
// the bits of both at once.
func TestSkipGradientOfPacks(t *testing.T) {
	rng := rand.New(rand.NewPCG(25, 26))
	dev := attnDevices(t, plainKind)[0]
	c := newRecCase(rng, plainKind, false, kernels.Recurrence{KeyHeads: 1, Heads: 2, KeyDim: 4, ValueDim: 8}, 70, 90)
	b, both := c.pack([]int{0, 1}), c.newGrads([]int{0, 1})
	b.layout.Segments = []int32{0, 70, 160}
	c.runBackward(dev, b, both)
	_, first := c.grads(dev, []int{0})
	second := c.newGrads([]int{1})
	second.dskip = first.dskip
	c.runBackward(dev, c.pack([]int{1}), second)
	c.checkSame(t, "dskip", second.dskip, both.dskip)
	one := c.newGrads([]int{0, 1})
	c.runBackward(dev, c.pack([]int{0, 1}), one)
	if sameBits(one.dskip.F32s(), both.dskip.F32s()) {
		t.Error("one pack of all rows gives the same bits as two: the test shows nothing")
	}
}
