package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

// sinkShape is the number of heads and their length for a case.
func (c *rowCase) sinkShape() (heads, dim int) { return 1 + c.size%3, c.cols() }

var sinkOps = []rowOp{
	{name: "Sinks", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		heads, dim := c.sinkShape()
		out, lse, sinks := c.part(c.strided(c.n, heads*dim)), c.part(c.f32(c.n, heads)), c.weight(1, heads)
		d.Sinks(out, lse, sinks)
		return []kernels.Tensor{out, lse}, nil
	}},
	{name: "SinksBackward", uncut: true, run: func(d *Device, c *rowCase) (_, other []kernels.Tensor) {
		heads, dim := c.sinkShape()
		out, dout, lse, sinks, dsinks := c.strided(c.n, heads*dim), c.strided(c.n, heads*dim), c.f32(c.n, heads),
			c.weight(1, heads), c.f32(1, heads)
		d.SinksBackward(dsinks, dout, out, lse, sinks, oneSegment(out))
		return nil, []kernels.Tensor{dsinks}
	}},
}

func TestSinksAreTheDefinition(t *testing.T) {
	sinksAreTheDefinition(t, newRowDevice(t, Auto, 2))
	sinksAreTheDefinition(t, newEx2hDevice(t))
}

func sinksAreTheDefinition(t *testing.T, d *Device) {
	t.Helper()
	c := rowCase{seed: 51, dtype: kernels.F32}
	c.start()
	const rows, heads, dim = 150, 3, 40
	exp2 := d.def.Exp2.Func()
	out, dout, lse, sinks, dsinks := c.strided(rows, heads*dim), c.strided(rows, heads*dim), c.f32(rows, heads),
		c.f32(1, heads), c.f32(1, heads)
	ys, wantLSE, sum := rowValues(out), rowValues(lse), rowSum{total: rowValues(dsinks)}
	d.Sinks(out, lse, sinks)
	d.SinksBackward(dsinks, dout, out, lse, sinks, sumSegments)
	ds := rowValues(dout)
	for r := range rows {
		sum.row(r)
		for h := range heads {
			l, s := wantLSE[r*heads+h], sinks.F32s()[h]*kernels.Log2E
			m := max(l, s)
			a := exp2(l - m)
			both := a + exp2(s-m)
			products := make([]float32, dim)
			for i := range dim {
				at := (r*heads+h)*dim + i
				ys[at] *= float32(a / both)
				products[i] = ds[at] * ys[at]
			}
			l = m + float32(kernels.Ln(both)*kernels.Log2E)
			wantLSE[r*heads+h] = l
			sum.add(h, -float32(exp2(min(s-l, 0))*scalarTree(products)))
		}
	}
	sum.row(-1)
	wantBits(t, "out", out, ys)
	wantBits(t, "lse", lse, wantLSE)
	wantBits(t, "dsinks", dsinks, sum.total)
}

// An attention with sinks, forward and backward, against float64: softmax over the scores and one more logit that has
// no value.
func TestSinksGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 52, dtype: kernels.F32}
	c.start()
	a := kernels.Attn{Heads: 4, KVHeads: 2, HeadDim: 8, Scale: 0.3, Window: 5}
	const rows = 9
	q, k, v, dout, sinks := c.f32(rows, 32), c.f32(rows, 16), c.f32(rows, 16), c.f32(rows, 32), c.f32(1, 4)
	out, lse, dsinks := rowTensor(kernels.F32, rows, 32), rowTensor(kernels.F32, rows, 4), rowTensor(kernels.F32, 1, 4)
	dq, dk, dv := rowTensor(kernels.F32, rows, 32), rowTensor(kernels.F32, rows, 16), rowTensor(kernels.F32, rows, 16)
	kv, l := kernels.KV{K: k, V: v}, &kernels.Layout{Spans: []kernels.Span{{Rows: 4}, {Row: 4, Rows: 5}},
		Segments: []int32{0, rows}}
	d.Attention(out, lse, q, kv, l, a)
	d.Sinks(out, lse, sinks)
	d.AttentionBackward(dq, dk, dv, dout, out, lse, q, kv, l, a)
	d.SinksBackward(dsinks, dout, out, lse, sinks, l.Segments)
	q64, k64, v64, s64, dout64 := to64(q), to64(k), to64(v), to64(sinks), to64(dout)
	loss := func(q, k, v, s []float64) float64 {
		sum := 0.0
		for _, span := range l.Spans {
			for i := range span.Rows {
				for h := range a.Heads {
					sum += sinkRow64(a, span.Row, i, h, q, k, v, s, dout64)
				}
			}
		}
		return sum
	}
	checkGradient(t, "dq", q64, func(p []float64) float64 { return loss(p, k64, v64, s64) }, rowValues(dq))
	checkGradient(t, "dk", k64, func(p []float64) float64 { return loss(q64, p, v64, s64) }, rowValues(dk))
	checkGradient(t, "dv", v64, func(p []float64) float64 { return loss(q64, k64, p, s64) }, rowValues(dv))
	checkGradient(t, "dsinks", s64, func(p []float64) float64 { return loss(q64, k64, v64, p) }, rowValues(dsinks))
}

// sinkRow64 is dout*out of the query at position i of a sequence that starts at row first.
func sinkRow64(a kernels.Attn, first, i, h int, q, k, v, sinks, dout []float64) float64 {
	g, dim := h/(a.Heads/a.KVHeads), a.HeadDim
	at := ((first+i)*a.Heads + h) * dim
	sum, value := math.Exp(sinks[h]), 0.0
	for j := max(0, i-a.Window+1); j <= i; j++ {
		key, score, gain := ((first+j)*a.KVHeads+g)*dim, 0.0, 0.0
		for x := range dim {
			score += q[at+x] * k[key+x]
			gain += dout[at+x] * v[key+x]
		}
		p := math.Exp(score * a.Scale)
		sum += p
		value += p * gain
	}
	return value / sum
}
