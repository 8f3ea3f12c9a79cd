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

// divided is the gradients of backward, by AttentionQueryGrad and AttentionKeyGrad of parts of the rows, and where all
// heads share a key by some heads at a time. Each part's own rows of out and lse come again, over the keys of all.
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
	sums := attnTensor(kernels.F32, nil, rows, c.KVHeads*(c.HeadDim+c.Values()), 7)
	times, v := 1, c.Values()
	if c.KVHeads == 1 {
		times = min(c.Heads, 3)
	}
	for _, part := range [][2]int{{rows / 2, rows}, {0, rows / 7}, {rows / 7, rows / 2}} {
		dk, dv := attnTensor(c.dtype, nil, rows, b.k.Cols, 7), attnTensor(c.dtype, nil, rows, b.v.Cols, 7)
		for i := range times {
			h, end := i*c.Heads/times, (i+1)*c.Heads/times
			some := c.Attn
			some.Heads = end - h
			dev.AttentionKeyGrad(dk, dv, sums, dout.ColRange(h*v, end*v), delta.ColRange(h, end),
				b.lse.ColRange(h, end), b.q.ColRange(h*c.HeadDim, end*c.HeadDim), kv, selected, b.layout, some,
				kernels.KeyPart{From: part[0], To: part[1], Begins: i == 0, Ends: i == times-1})
		}
		dev.Copy(g.dk.RowRange(part[0], part[1]), dk.RowRange(part[0], part[1]))
		dev.Copy(g.dv.RowRange(part[0], part[1]), dv.RowRange(part[0], part[1]))
	}
	return g
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
	dq, dk, dv = make([]float32, len(c.q[s])), make([]float32, len(c.k[s])), make([]float32, len(c.v[s]))
	accK, accV := make([]float32, len(dk)), make([]float32, len(dv))
	for h := range c.Heads {
		p, ds := c.scores(s, h, dout, out, lse)
		row := make([]float32, n)
		column := func(of func(x []float32, pos, head, heads int) []float32, x []float32, heads, head,
			d int) []float32 {
			y := make([]float32, n)
			for i := range y {
				y[i] = of(x, i, head, heads)[d]
			}
			return y
		}
		for d := range c.HeadDim {
			k, q := column(c.head, c.k[s], c.KVHeads, h/group, d), column(c.head, c.q[s], c.Heads, h, d)
			for i := range n {
				c.head(dq, i, h, c.Heads)[d] = attnRound(c.dtype, refDot(c.dot, 0, ds[i*n:][:n], k)+0)
			}
			for j := range n {
				at := (j*c.KVHeads+h/group)*c.HeadDim + d
				for i := range row {
					row[i] = ds[i*n+j]
				}
				accK[at] = refDot(c.dot, accK[at], row, q)
			}
		}
		for d := range c.ValueDim {
			do := column(c.value, dout, c.Heads, h, d)
			for j := range n {
				at := (j*c.KVHeads+h/group)*c.ValueDim + d
				for i := range row {
					row[i] = p[i*n+j]
				}
				accV[at] = refDot(c.dot, accV[at], row, do)
			}
		}
	}
	for i := range accK {
		dk[i] = attnRound(c.dtype, accK[i]+0)
	}
	for i := range accV {
		dv[i] = attnRound(c.dtype, accV[i]+0)
	}
	return dq, dk, dv
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

// loss64 is the sum of dout*out of one sequence in float64, softmax and all.
func (c attnCase) loss64(q, k, v []float64, dout []float32, n int) float64 {
	return c.lossOf(q, k, v, dout, n, c.visible)
}

// lossOf is loss64 with the keys that each query sees.
func (c attnCase) lossOf(q, k, v []float64, dout []float32, n int, sees func(i, j int) bool) float64 {
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
	const n, step = 21, 1e-5
	c := newValueCase(rng, plainKind, 2, 2, 8, 5, 9, n)
	dout := c.randomDout(rng)
	_, g := c.backward(attnDevices(t, c.attnKind)[0], dout, []int{0})
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
			up := c.loss64(x[0], x[1], x[2], dout[0], n)
			x[which][i] = keep - step
			down := c.loss64(x[0], x[1], x[2], dout[0], n)
			x[which][i] = keep
			got, want := float64(attnRow(grad, i/grad.Cols)[i%grad.Cols]), (up-down)/(2*step)
			if math.Abs(got-want) > 2e-5*(1+math.Abs(want)) {
				t.Fatalf("d%c element %d: got %g, finite difference %g", "qkv"[which], i, got, want)
			}
		}
	}
}
