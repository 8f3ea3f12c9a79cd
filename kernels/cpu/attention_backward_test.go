package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// attnGrads are the results of a backward.
type attnGrads struct{ dq, dk, dv kernels.Tensor }

func (c attnCase) randomDout(rng *rand.Rand) [][]float32 {
	var d [][]float32
	for _, n := range c.lengths {
		d = append(d, attnRandom(rng, c.dtype, n*c.Heads*c.ValueDim, 1))
	}
	return d
}

// backward runs forward and backward of the sequences of a packed batch, in the given order.
func (c attnCase) backward(dev *Device, dout [][]float32, order []int) (attnBatch, attnGrads) {
	b := c.pack(order)
	var d []float32
	for _, s := range order {
		d = append(d, dout[s]...)
	}
	kv := kernels.KV{K: b.k, V: b.v}
	dev.Attention(b.out, b.lse, b.q, kv, b.layout, c.Attn)
	rows := b.layout.Rows()
	g := attnGrads{
		dq: attnTensor(c.dtype, nil, rows, b.q.Cols, 7), dk: attnTensor(c.dtype, nil, rows, b.k.Cols, 7),
		dv: attnTensor(c.dtype, nil, rows, b.v.Cols, 7),
	}
	dev.AttentionBackward(g.dq, g.dk, g.dv, attnTensor(c.dtype, d, rows, b.out.Cols, 1), b.out, b.lse, b.q, kv,
		b.layout, c.Attn)
	return b, g
}

// divided is the gradients of backward, by AttentionQueryGrad and AttentionKeyGrad of parts of the rows. Each part's
// own rows of out and lse come again, over the keys of all.
func (c attnCase) divided(dev *Device, b attnBatch, dout kernels.Tensor, selected kernels.Tensor) attnGrads {
	rows, kv := b.layout.Rows(), kernels.KV{K: b.k, V: b.v}
	g := attnGrads{dq: attnTensor(c.dtype, nil, rows, b.q.Cols, 7), dk: attnTensor(c.dtype, nil, rows, b.k.Cols, 7),
		dv: attnTensor(c.dtype, nil, rows, b.v.Cols, 7)}
	delta := attnTensor(kernels.F32, nil, rows, c.Heads, 7)
	for _, part := range [][2]int{{0, rows / 7}, {rows / 7, rows / 2}, {rows / 2, rows}} {
		from, to := part[0], part[1]
		l := &kernels.Layout{Segments: []int32{0, int32(to - from)}}
		for _, s := range b.layout.Spans {
			if first, end := max(s.Row, from), min(s.Row+s.Rows, to); first < end {
				l.Spans = append(l.Spans, kernels.Span{Row: first - from, Rows: end - first, Pos: first - s.Row,
					Shift: s.Row - (first - from)})
			}
		}
		out, lse, d := b.out.RowRange(from, to), b.lse.RowRange(from, to), delta.RowRange(from, to)
		if selected.IsNil() {
			dev.Attention(out, lse, b.q.RowRange(from, to), kv, l, c.Attn)
		} else {
			dev.SparseAttend(out, lse, b.q.RowRange(from, to), kv, selected.RowRange(from, to), l, c.Attn)
		}
		dev.AttentionDelta(d, dout.RowRange(from, to), out, c.Attn)
		own := selected
		if !own.IsNil() {
			own = own.RowRange(from, to)
		}
		dev.AttentionQueryGrad(g.dq.RowRange(from, to), dout.RowRange(from, to), d, lse, b.q.RowRange(from, to), kv,
			own, l, c.Attn)
	}
	for _, keys := range [][][2]int{{{0, rows / 7}, {rows / 3, rows}}, nil, {{rows / 7, rows / 3}}} {
		c.keyPart(dev, g, keys, b, dout, delta, selected)
	}
	return g
}

// keyPart computes dk and dv of some keys, of a latent by three parts of the queries, one of which has one query.
func (c attnCase) keyPart(dev *Device, g attnGrads, keys [][2]int, b attnBatch, dout, delta, selected kernels.Tensor) {
	rows := b.layout.Rows()
	parts := []int{0, rows}
	if c.Latent {
		parts = []int{0, rows / 2, rows/2 + 1, rows}
	}
	sums := attnTensor(kernels.F32, nil, rows, c.KVHeads*(c.HeadDim+c.Values()), 7)
	dk, dv := attnTensor(c.dtype, nil, rows, b.k.Cols, 7), attnTensor(c.dtype, nil, rows, b.v.Cols, 7)
	for i, from := range parts[:len(parts)-1] {
		to, lists := parts[i+1], selected
		if !lists.IsNil() {
			lists = lists.RowRange(from, to)
		}
		dev.AttentionKeyGrad(dk, dv, sums, dout.RowRange(from, to), delta.RowRange(from, to), b.lse.RowRange(from, to),
			b.q.RowRange(from, to), kernels.KV{K: b.k, V: b.v}, lists, b.layout, c.Attn,
			kernels.KeyPart{From: from, To: to, Keys: keys, Begins: from == 0, Ends: to == rows})
	}
	for _, k := range keys {
		dev.Copy(g.dk.RowRange(k[0], k[1]), dk.RowRange(k[0], k[1]))
		dev.Copy(g.dv.RowRange(k[0], k[1]), dv.RowRange(k[0], k[1]))
	}
}

// sameGradients compares bits.
func sameGradients(t *testing.T, got, want attnGrads) {
	t.Helper()
	for i, x := range [][2]kernels.Tensor{{got.dq, want.dq}, {got.dk, want.dk}, {got.dv, want.dv}} {
		for row := range x[0].Rows {
			if !sameBits(attnRow(x[0], row), attnRow(x[1], row)) {
				t.Fatalf("%s: row %d is %v in parts, %v whole", []string{"dq", "dk", "dv"}[i], row, attnRow(x[0], row),
					attnRow(x[1], row))
			}
		}
	}
}

// gradient is the scalar reference: dq [T, heads*HeadDim], dk [T, kvHeads*HeadDim] and dv [T, kvHeads*ValueDim] of one
// sequence from its out and lse rows.
func (c attnCase) gradient(s int, dout []float32, out, lse [][]float32) (dq, dk, dv []float32) {
	n, group := c.lengths[s], c.Heads/c.KVHeads
	var p, ds [][]float32
	for h := range c.Heads {
		x, y := c.scores(s, h, dout, out, lse)
		p, ds = append(p, x), append(ds, y)
	}
	dq = make([]float32, len(c.q[s]))
	for h := range c.Heads {
		for d := range c.HeadDim {
			k := make([]float32, n)
			for j := range k {
				k[j] = c.head(c.k[s], j, h/group, c.KVHeads)[d]
			}
			for i := range n {
				c.head(dq, i, h, c.Heads)[d] = attnRound(c.dtype, refDot(c.dot, 0, ds[h][i*n:][:n], k)+0)
			}
		}
	}
	return dq, c.ofKeys(n, c.HeadDim, ds, c.q[s]), c.ofKeys(n, c.ValueDim, p, dout)
}

// ofKeys is the gradient of keys or values of so many columns from the factors [T, T] of heads and the rows of queries
// [T, heads*dim].
func (c attnCase) ofKeys(n, dim int, factors [][]float32, rows []float32) []float32 {
	group, grad := c.Heads/c.KVHeads, make([]float32, n*c.KVHeads*dim)
	outer, inner := c.Heads, n
	at := func(o, i int) (query, head int) { return i, o }
	if c.Latent {
		outer, inner = n, c.Heads
		at = func(o, i int) (query, head int) { return o, i }
	}
	x, y := make([]float32, inner), make([]float32, inner)
	for e := range grad {
		j, kvHead, d, sum := e/dim/c.KVHeads, e/dim%c.KVHeads, e%dim, float32(0)
		for o := range outer {
			if _, head := at(o, 0); !c.Latent && head/group != kvHead {
				continue
			}
			for i := range inner {
				query, head := at(o, i)
				x[i], y[i] = factors[head][query*n+j], rows[(query*c.Heads+head)*dim+d]
			}
			sum = refDot(c.dot, sum, x, y)
		}
		grad[e] = attnRound(c.dtype, sum+0)
	}
	return grad
}

// scores is p and ds [T, T] of a head as operands of the dots, +0 where masked.
func (c attnCase) scores(s, h int, dout []float32, out, lse [][]float32) (p, ds []float32) {
	n, group, dim := c.lengths[s], c.Heads/c.KVHeads, c.ValueDim
	p, ds = make([]float32, n*n), make([]float32, n*n)
	lanes := 1 << int(math.Ceil(math.Log2(float64(dim))))
	for i := range n {
		q, do := c.head(c.q[s], i, h, c.Heads), c.value(dout, i, h, c.Heads)
		prod := make([]float32, dim)
		for d, o := range out[i][h*dim:][:dim] {
			prod[d] = do[d] * o
		}
		sum := refTree(lanes, prod)
		for j := range n {
			if !c.visible(i, j) {
				continue
			}
			u := refDot(c.dot, 0, q, c.head(c.k[s], j, h/group, c.KVHeads)) * float32(c.Scale*math.Log2E)
			e := c.exp2.Func()(min(u-lse[i][h], 0))
			dp := refDot(c.dot, 0, do, c.value(c.v[s], j, h/group, c.KVHeads))
			x := float32(e * (dp - sum))
			p[i*n+j], ds[i*n+j] = attnRound(c.dtype, e), attnRound(c.dtype, float32(x*float32(c.Scale)))
		}
	}
	return p, ds
}

func TestAttentionBackwardEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for _, c := range []attnCase{
			newAttnCase(rng, kind, 1, 2, 16, 0, 1, 2, 64, 65, 20),
			newAttnCase(rng, kind, 4, 2, 32, 11, 40, 70),
			newAttnCase(rng, kind, 2, 1, 16, 90, 280),
			newAttnCase(rng, kind, 8, 1, 64, 0, 33),
			newAttnCase(rng, kind, 8, 1, 16, 0, 9, 70, 1).latent(),
			newValueCase(rng, kind, 20, 1, 24, 16, 0, 40, 3).latent(),
			newAttnCase(rng, kind, 1, 1, 16, 0, 70).latent(),
			newValueCase(rng, kind, 1, 2, 24, 16, 0, 70, 3),
		} {
			dout := c.randomDout(rng)
			order := ints(len(c.lengths))
			b, g := c.backward(devs[0], dout, order)
			sameGradients(t, c.divided(devs[0], b, attnTensor(c.dtype, slices.Concat(dout...), b.layout.Rows(),
				b.out.Cols, 1), kernels.Tensor{}), g)
			for s, span := range b.layout.Spans {
				var out, lse [][]float32
				for i := range span.Rows {
					out, lse = append(out, attnRow(b.out, span.Row+i)), append(lse, attnRow(b.lse, span.Row+i))
				}
				dq, dk, dv := c.gradient(s, dout[s], out, lse)
				for i := range span.Rows {
					r := span.Row + i
					for _, x := range []struct {
						name string
						got  kernels.Tensor
						want []float32
					}{{"dq", g.dq, dq}, {"dk", g.dk, dk}, {"dv", g.dv, dv}} {
						if got, want := attnRow(x.got, r), attnRowOf(x.want, i, x.got.Cols); !sameBits(got, want) {
							t.Fatalf("%v: %s of sequence %d position %d:\n got %v\nwant %v", c, x.name, s, i, got, want)
						}
					}
				}
			}
			for _, dev := range devs[1:] {
				rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
				b2, g2 := c.backward(dev, dout, order)
				for i, s := range order {
					for r := range c.lengths[s] {
						x, y := b2.layout.Spans[i].Row+r, b.layout.Spans[s].Row+r
						if !sameBits(attnRow(g2.dq, x), attnRow(g.dq, y)) ||
							!sameBits(attnRow(g2.dk, x), attnRow(g.dk, y)) ||
							!sameBits(attnRow(g2.dv, x), attnRow(g.dv, y)) {
							t.Fatalf("%v: %s in order %v: sequence %d position %d differs", c, dev.Name(), order, s, r)
						}
					}
				}
			}
		}
	}
}

// loss64 is the sum of dout*out of one sequence in float64, softmax and all, with the keys that each query sees.
func (c attnCase) loss64(q, k, v []float64, dout []float32, n int, sees func(i, j int) bool) float64 {
	dim, values, loss := c.HeadDim, c.ValueDim, 0.0
	for i := range n {
		for h := range c.Heads {
			kh := h / (c.Heads / c.KVHeads)
			sum, dot := 0.0, 0.0
			for j := range n {
				if !sees(i, j) {
					continue
				}
				u, g := 0.0, 0.0
				for d := range dim {
					u += q[(i*c.Heads+h)*dim+d] * k[(j*c.KVHeads+kh)*dim+d]
				}
				for d := range values {
					g += float64(dout[(i*c.Heads+h)*values+d]) * v[(j*c.KVHeads+kh)*values+d]
				}
				e := math.Exp(u * c.Scale)
				sum, dot = sum+e, dot+e*g
			}
			loss += dot / sum
		}
	}
	return loss
}

func TestAttentionBackwardIsTheGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	const n = 21
	for _, c := range []attnCase{newValueCase(rng, plainKind, 2, 2, 8, 5, 9, n),
		newValueCase(rng, plainKind, 3, 1, 8, 5, 0, n).latent()} {
		dout := c.randomDout(rng)
		_, g := c.backward(attnDevices(t, c.attnKind)[0], dout, []int{0})
		c.isTheGradient(t, g, dout[0], c.visible)
	}
}

// isTheGradient compares with finite differences in float64.
func (c attnCase) isTheGradient(t *testing.T, g attnGrads, dout []float32, sees func(i, j int) bool) {
	t.Helper()
	const step = 1e-5
	wide := func(x []float32) []float64 {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = float64(x[i])
		}
		return y
	}
	x := [3][]float64{wide(c.q[0]), wide(c.k[0]), wide(c.v[0])}
	for which, grad := range []kernels.Tensor{g.dq, g.dk, g.dv} {
		for i := range x[which] {
			keep := x[which][i]
			x[which][i] = keep + step
			up := c.loss64(x[0], x[1], x[2], dout, c.lengths[0], sees)
			x[which][i] = keep - step
			down := c.loss64(x[0], x[1], x[2], dout, c.lengths[0], sees)
			x[which][i] = keep
			got, want := float64(attnRow(grad, i/grad.Cols)[i%grad.Cols]), (up-down)/(2*step)
			if math.Abs(got-want) > 2e-5*(1+math.Abs(want)) {
				t.Fatalf("%v: d%c element %d: got %g, finite difference %g", c, "qkv"[which], i, got, want)
			}
		}
	}
}
