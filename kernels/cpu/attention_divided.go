package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// Gradients of attention whose rows several devices have: those of attention_backward.go, by parts of its queries and
// keys.

var _ kernels.DividedAttention = (*Device)(nil)

// AttentionDelta is D_i of AttentionBackward.
func (d *Device) AttentionDelta(delta, dout, out kernels.Tensor, a kernels.Attn) {
	if delta.Cols != a.Heads || dout.Cols != a.Heads*a.Values() || out.Cols != dout.Cols || delta.Rows != dout.Rows {
		panic(fmt.Sprintf("cpu: %s of %s and %s, attention %+v", delta, dout, out, a))
	}
	to, x, y, n := delta.F32s(), d.matrix(dout), d.matrix(out), a.Values()
	d.pool.each(dout.Rows, 16, func(_, from, end int) {
		bufs := make([]float32, 2*dout.Cols)
		for row := from; row < end; row++ {
			g, o := x.load(row, bufs[:dout.Cols]), y.load(row, bufs[dout.Cols:])
			for h := range a.Heads {
				to[row*delta.Stride+h] = d.vec.TreeDot(g[h*n:][:n], o[h*n:][:n])
			}
		}
	})
}

// gradUnit is a head, and positions [from, to) of a span: queries, or keys.
type gradUnit struct {
	span           *kernels.Span
	head, from, to int
}

// gradUnits cuts every span into units of so many positions for each head.
func gradUnits(l *kernels.Layout, heads, each int) (units []gradUnit) {
	for i := range l.Spans {
		s := &l.Spans[i]
		for from := s.Pos; from < s.Pos+s.Rows; from += each {
			for h := range heads {
				units = append(units, gradUnit{s, h, from, min(from+each, s.Pos+s.Rows)})
			}
		}
	}
	return units
}

// AttentionQueryGrad is dq of AttentionBackward. A unit of work is a tile of queries.
func (d *Device) AttentionQueryGrad(dq, dout, delta, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	checkAttention(kv, l, a, []kernels.Tensor{q, dq}, []kernels.Tensor{dout})
	op := d.newAttentionGrad(dout, lse, q, kv, selected, a)
	op.dq, op.delta = dq, delta
	units := gradUnits(l, a.Heads, gradQueries)
	d.pool.each(len(units), 1, func(_, from, end int) {
		w := gradScratches.Get().(*gradScratch)
		defer gradScratches.Put(w)
		for _, u := range units[from:end] {
			k, v := op.keys(u.span, u.head/op.group, 0, u.to, w)
			op.tiles(u.span, u.head, u.head+1, u.from, u.to, func(t gradTile) {
				op.load(&t, u.span, w)
				op.queries(t, w, k, v, 0, t.to)
				op.storeQueries(t, w)
			})
		}
	})
}

// AttentionKeyGrad is dk and dv of AttentionBackward. A unit of work is keys of a head: every chain stays in one
// goroutine.
func (d *Device) AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor, l *kernels.Layout, a kernels.Attn, part kernels.KeyPart) {
	mustBeWhole(l)
	checkAttention(kv, l, a, nil, nil)
	if n := part.To - part.From; q.Rows != n || dout.Rows != n || delta.Rows != n || lse.Rows != n ||
		!selected.IsNil() && selected.Rows != n || !a.Latent && (n != l.Rows() || !part.Begins || !part.Ends) {
		panic(fmt.Sprintf("cpu: keys of part %+v by queries %s, gradients %s, lists %s, attention %+v", part, q, dout,
			selected, a))
	}
	op := d.newAttentionGrad(dout, lse, q, kv, selected, a)
	op.dk, op.dv, op.delta, op.first = dk, dv, delta, part.From
	units := keyUnits(l, a.KVHeads, part)
	d.pool.each(len(units), 1, func(_, from, end int) {
		w := gradScratches.Get().(*gradScratch)
		defer gradScratches.Put(w)
		for _, u := range units[from:end] {
			op.keyUnit(u, sums, part, w)
		}
	})
}

// keyUnits is those of the part's keys.
func keyUnits(l *kernels.Layout, heads int, part kernels.KeyPart) (units []gradUnit) {
	for i := range l.Spans {
		s := &l.Spans[i]
		for _, keys := range part.Keys {
			first, end := max(keys[0]-s.Row, 0), min(keys[1]-s.Row, s.Rows)
			for from := first; from < end; from += stripKeys {
				for h := range heads {
					units = append(units, gradUnit{s, h, from, min(from+stripKeys, end)})
				}
			}
		}
	}
	return units
}

// keyUnit continues the chains of a unit's keys by the part's queries.
func (op *attentionGrad) keyUnit(u gradUnit, sums kernels.Tensor, part kernels.KeyPart, w *gradScratch) {
	dim, values, n := op.shape.HeadDim, op.shape.Values(), u.to-u.from
	w.dk, w.dv = sized(w.dk, n*dim), sized(w.dv, n*values)
	chain := func(i int) (ofV, ofK []float32) {
		row := sums.F32s()[(u.span.Row+u.from+i)*sums.Stride+u.head*(dim+values):][:dim+values]
		return row[:values], row[values:]
	}
	clear(w.dk)
	clear(w.dv)
	for i := 0; i < n && !part.Begins; i++ {
		ofV, ofK := chain(i)
		copy(w.dv[i*values:], ofV)
		copy(w.dk[i*dim:], ofK)
	}
	k, v := op.keys(u.span, u.head, u.from, u.to, w)
	first, end := max(u.from, part.From-u.span.Row), min(u.span.Rows, part.To-u.span.Row)
	if !op.shape.Latent { // steps begin at position 0
		first = first / gradQueries * gradQueries
	}
	op.tiles(u.span, u.head*op.group, (u.head+1)*op.group, first, end, func(t gradTile) {
		op.load(&t, u.span, w)
		op.queries(t, w, k, v, u.from, u.to)
	})
	dk, dv := op.d.matrix(op.dk), op.d.matrix(op.dv)
	for i := range n {
		row, ofK, ofV := u.span.Row+u.from+i, w.dk[i*dim:][:dim], w.dv[i*values:][:values]
		if part.Ends {
			dk.storeHead(row, u.head, ofK)
			dv.storeHead(row, u.head, ofV)
			continue
		}
		sumV, sumK := chain(i)
		copy(sumV, ofV)
		copy(sumK, ofK)
	}
}
