package meta

import "lockstep/kernels"

// keyGrad counts dk and dv of a part. With lists too a GPU computes all pairs of 128 keys and 64 rows (query, head) in
// which one pair is on a list: most of them, in sequences up to a hundred times as long as a list.
func (d *Device) keyGrad(kv kernels.KV, l *kernels.Layout, a kernels.Attn, part kernels.KeyPart,
	tensors ...kernels.Tensor) {
	if d.work == nil {
		return
	}
	all, held := 0.0, 0
	for _, keys := range part.Keys {
		held += keys[1] - keys[0]
		all += pairsOf(l, part, keys)
	}
	_, share := divided(a)
	d.pairs(AttentionBackward, kv, share*all, float64(held), a, tensors...)
}

// pairsOf is how many pairs the queries of a part have with a range of keys.
func pairsOf(l *kernels.Layout, part kernels.KeyPart, keys [2]int) (n float64) {
	for _, s := range l.Spans {
		first, end := float64(max(keys[0]-s.Row, 0)), float64(min(keys[1]-s.Row, s.Rows))
		from, to := float64(max(part.From-s.Row, 0)), float64(min(part.To-s.Row, s.Rows))
		if first >= end {
			continue
		}
		if a, b := max(from, first), min(to, end); a < b { // queries among the keys
			n += (b - a) * (a + b + 1 - 2*first) / 2
		}
		n += (end - first) * max(0, to-max(from, end))
	}
	return n
}
