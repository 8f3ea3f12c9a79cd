//go:build cuda

package cuda

import (
	"gorgonia.org/cu"

	"lockstep/kernels"
)

// SparseAttendBackward is AttentionBackward with lists of keys, for unpaged layouts; dq, dk, dv are written. A bit for each row and key says what is on its list.
func (d *Device) SparseAttendBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, picks kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	mustAttendSparsely(a, picks, q, kv.K, kv.V, out, dout, dq, dk, dv)
	if absorbed(a) {
		d.gradientsAbsorbed(dq, dk, dv, dout, out, lse, q, kv, picks, l, a)
		return
	}
	rows, width := l.Rows(), blocks(longest(l), keyRows)
	s, parts := d.newSparse(kv, picks, l, a, []int{a.Heads * picks.Cols}, []int{rows * a.Heads, 2 * rows * width})
	products, delta, masks := parts[0], parts[1], parts[2]
	d.launch("attention_delta", warps(rows*a.Heads), warpThreads, 0, delta, dout, out, rows, a.Heads, a.Values(), dout.Stride, out.Stride)
	for _, c := range s.calls {
		s.union(c)
		s.multiply(c, s.dots, q, kv.K, a.HeadDim)
		s.multiply(c, products, dout, kv.V, a.Values())
		d.launch("sparse_gradients", warps(c.rows*a.Heads), warpThreads, 0, s.weights, s.dots, products, lse, delta, c.rowsAt, c.rows, a.Heads, picks.Cols, lse.Stride,
			scoreScale(a), float32(a.Scale))
		s.along(c, dq, kv.K, a.HeadDim, softmax{})
		s.mark(c, masks, 0)
	}
	keys := attentionParts(l, attentionRows, false)
	d.launch("sparse_dkv_"+widths(a), [3]int{len(keys), a.KVHeads, 1}, keyThreads(a), stageBytes(a, 2*attentionRows, 2*attentionRows), dk, dv, dout, lse, delta, q, kv.K, kv.V,
		masks, stage(d, keys), a.Heads/a.KVHeads, width, dk.Stride, dv.Stride, dout.Stride, lse.Stride, q.Stride, kv.K.Stride, kv.V.Stride, scoreScale(a), float32(a.Scale))
}

// mark writes a bit for each row and key of a call, and with firsts how many entries lie before each 64 keys.
func (s *sparse) mark(c sparseCall, masks, firsts cu.DevicePtr) {
	width := blocks(s.longest, keyRows)
	s.d.launch("sparse_masks", [3]int{c.rows, blocks(width, warpThreads), 1}, warpThreads, 0, masks, firsts, s.picks, c.rowsAt, width, s.topK, s.picks.Stride)
}
