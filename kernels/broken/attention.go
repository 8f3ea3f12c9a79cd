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
	rows := cacheRows(kv, s, first, s.Pos+1)
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
		d.operations.Attention(o, e, q, d.gathered(mem, kv, half), alone, a)
		outs[h], lses[h] = d.load(o), d.load(e)
	}
	d.merge(outs[0][0], outs[1][0], lses[0][0], lses[1][0], a.Values())
	d.store(out, outs[0])
	d.store(lse, lses[0])
}

// cacheRows are the rows of a cache that hold positions [from, to) of a span's sequence.
func cacheRows(kv kernels.KV, s kernels.Span, from, to int) (rows []int32) {
	for p := from; p < to; p++ {
		rows = append(rows, s.Pages[p/kv.PageRows]*int32(kv.PageRows)+int32(p%kv.PageRows))
	}
	return rows
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
		for i := range s.Rows {
			row := s.Row + i
			keys := rowsOf(kv, s, lists[row][:listed(lists[row])])
			d.attendInListedHalves(out.RowRange(row, row+1), lse.RowRange(row, row+1), q.RowRange(row, row+1), kv, keys,
				a)
		}
	}
}

// attendInListedHalves is SparseAttend of one query to the first half of these rows of keys and to the rest, merged
// after rounding. Each half is a sequence of its own, of which the list has every key.
func (d *Device) attendInListedHalves(out, lse, q kernels.Tensor, kv kernels.KV, keys []int32, a kernels.Attn) {
	if len(keys) < 2 {
		return
	}
	mem, release := d.scratch()
	defer release()
	var outs, lses [2][][]float32
	for h, half := range [2][]int32{keys[:(len(keys)+1)/2], keys[(len(keys)+1)/2:]} {
		alone := &kernels.Layout{
			Spans: []kernels.Span{{Rows: 1, Pos: len(half) - 1, Pages: []int32{0}}}, Segments: []int32{0, 1},
		}
		all := make([]int32, len(half))
		for i := range all {
			all[i] = int32(i)
		}
		list := mem.New(kernels.I32, 1, len(half))
		d.storeInts(list, [][]int32{all})
		o, e := mem.New(out.DType, 1, out.Cols), mem.New(kernels.F32, 1, lse.Cols)
		d.operations.SparseAttend(o, e, q, d.gathered(mem, kv, half), list, alone, a)
		outs[h], lses[h] = d.load(o), d.load(e)
	}
	d.merge(outs[0][0], outs[1][0], lses[0][0], lses[1][0], a.Values())
	d.store(out, outs[0])
	d.store(lse, lses[0])
}

// rowsOf are the rows of keys that hold positions of a span's sequence, in a cache or in the batch.
func rowsOf(kv kernels.KV, s kernels.Span, positions []int32) (rows []int32) {
	for _, p := range positions {
		if kv.PageRows == 0 {
			rows = append(rows, int32(s.Row)+p)
			continue
		}
		rows = append(rows, cacheRows(kv, s, int(p), int(p)+1)...)
	}
	return rows
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
