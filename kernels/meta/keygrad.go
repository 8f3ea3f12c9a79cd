package meta

import "lockstep/kernels"

// keyGrad counts dk and dv of a part, whose queries list at most so many keys each (0: there are no lists): a GPU
// computes all pairs, or goes along lists where that is less.
func (d *Device) keyGrad(kv kernels.KV, l *kernels.Layout, most int, a kernels.Attn, part kernels.KeyPart,
	tensors ...kernels.Tensor) {
	if d.work == nil {
		return
	}
	work, held := part.Work(l, most), 0
	for _, keys := range part.Keys {
		held += keys[1] - keys[0]
	}
	pairs := work.Pairs
	if most > 0 {
		pairs = min(pairs, work.AlongLists(a.Heads))
	}
	_, share := divided(a)
	d.pairs(AttentionBackward, kv, share*pairs, float64(held), a, tensors...)
}
