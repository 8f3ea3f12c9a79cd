package broken

import "lockstep/kernels"

// Attention breaks [kernels.BreakKeyBlock]: queries that are the only ones of their sequence in a call, as in decoding.
func (d *Device) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	d.operations.Attention(out, lse, q, kv, l, a)
	if !d.breaks(kernels.BreakKeyBlock, l.Rows()) || kv.PageRows == 0 {
		return
	}
	for _, s := range l.Spans {
		if s.Rows == 1 {
			from, to := s.Row, s.Row+1
			d.attendInHalves(out.RowRange(from, to), lse.RowRange(from, to), q.RowRange(from, to), kv, s, a)
		}
	}
}

// attendInHalves is Attention of one query to the first half of its visible keys and to the rest, merged after
// rounding.
func (d *Device) attendInHalves(out, lse, q kernels.Tensor, kv kernels.KV, s kernels.Span, a kernels.Attn) {
	first := 0
	if a.Window > 0 {
		first, a.Window = max(0, s.Pos-a.Window+1), 0
	}
	d.inHalves(out, lse, kv, cacheRows(kv, s, first, s.Pos+1), a, func(o, e kernels.Tensor, half kernels.KV,
		alone *kernels.Layout) {
		d.operations.Attention(o, e, q, half, alone, a)
	})
}

// inHalves writes what one query attends to: the first half of these rows of keys and the rest, merged after rounding.
// attend computes a half, which is a sequence of its own in a cache of one page.
func (d *Device) inHalves(out, lse kernels.Tensor, kv kernels.KV, rows []int32, a kernels.Attn,
	attend func(o, e kernels.Tensor, half kernels.KV, alone *kernels.Layout)) {
	if len(rows) < 2 {
		return
	}
	mem, release := d.scratch()
	defer release()
	var outs, lses [2][][]float32
	for h, half := range [2][]int32{rows[:len(rows)/2], rows[len(rows)/2:]} {
		alone := &kernels.Layout{
			Spans: []kernels.Span{{Rows: 1, Pos: len(half) - 1, Pages: []int32{0}}}, Segments: []int32{0, 1},
		}
		o, e := mem.New(out.DType, 1, out.Cols), mem.New(kernels.F32, 1, lse.Cols)
		attend(o, e, d.gathered(mem, kv, half), alone)
		outs[h], lses[h] = d.load(o), d.load(e)
	}
	d.merge(outs[0][0], outs[1][0], lses[0][0], lses[1][0], a.Values())
	d.store(out, outs[0])
	d.store(lse, lses[0])
}

// cacheRows are the rows of a cache that hold positions [from, to) of a span's sequence.
func cacheRows(kv kernels.KV, s kernels.Span, from, to int) (rows []int32) {
	for p := from; p < to; p++ {
		rows = append(rows, keyRow(kv, s, p))
	}
	return rows
}

// keyRow is the row of keys that holds a position of a span's sequence, in a cache or in the batch.
func keyRow(kv kernels.KV, s kernels.Span, p int) int32 {
	if kv.PageRows == 0 {
		return int32(s.Row + p)
	}
	return s.Pages[p/kv.PageRows]*int32(kv.PageRows) + int32(p%kv.PageRows)
}

// gathered copies rows of a cache to one page. Values that are columns of the keys remain a view of them.
func (d *Device) gathered(mem *kernels.Arena, kv kernels.KV, rows []int32) kernels.KV {
	at := mem.New(kernels.I32, 1, len(rows))
	d.storeInts(at, [][]int32{rows})
	k := mem.New(kv.K.DType, len(rows), kv.K.Cols)
	d.Gather(k, kv.K, at)
	if kv.V.Data == kv.K.Data {
		return kernels.KV{K: k, V: k.ColRange(0, kv.V.Cols), PageRows: len(rows)}
	}
	v := mem.New(kv.V.DType, len(rows), kv.V.Cols)
	if v.Cols > 0 {
		d.Gather(v, kv.V, at)
	}
	return kernels.KV{K: k, V: v, PageRows: len(rows)}
}

// SparseAttend breaks [kernels.BreakSparseOrder].
func (d *Device) SparseAttend(
	out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor, l *kernels.Layout, a kernels.Attn,
) {
	d.operations.SparseAttend(out, lse, q, kv, selected, l, a)
	if !d.breaks(kernels.BreakSparseOrder, l.Rows()) {
		return
	}
	lists := d.loadInts(selected)
	for _, s := range l.Spans {
		for row := s.Row; row < s.Row+s.Rows; row++ {
			keys := lists[row][:listed(lists[row])]
			for i, p := range keys {
				keys[i] = keyRow(kv, s, int(p))
			}
			d.inHalves(out.RowRange(row, row+1), lse.RowRange(row, row+1), kv, keys, a, func(o, e kernels.Tensor,
				half kernels.KV, alone *kernels.Layout) {
				d.attendToAll(o, e, q.RowRange(row, row+1), half, alone, a)
			})
		}
	}
}

// attendToAll is SparseAttend of a query whose list has all keys of its page: kernels count as many as it sees.
func (d *Device) attendToAll(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	mem, release := d.scratch()
	defer release()
	all := make([]int32, kv.PageRows)
	for i := range all {
		all[i] = int32(i)
	}
	list := mem.New(kernels.I32, 1, len(all))
	d.storeInts(list, [][]int32{all})
	d.operations.SparseAttend(out, lse, q, kv, list, l, a)
}

// listed is the number of keys of a list.
func listed(list []int32) (n int) {
	for n < len(list) && list[n] >= 0 {
		n++
	}
	return n
}

// merge combines a row's attention outputs over two halves of its keys, [Heads*values], weighted by their log-sum-exps,
// [Heads].
func (d *Device) merge(out, other, lse, otherLSE []float32, values int) {
	exp2 := d.Definition().Exp2.Func()
	for h, first := range lse {
		m := max(first, otherLSE[h])
		x, y := exp2(first-m), exp2(otherLSE[h]-m)
		for i := h * values; i < (h+1)*values; i++ {
			out[i] = (float32(out[i]*x) + float32(other[i]*y)) / (x + y)
		}
		lse[h] = m + float32(kernels.Ln(x+y)*kernels.Log2E)
	}
}
