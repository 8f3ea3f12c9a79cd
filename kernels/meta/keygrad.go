package meta

import (
	"math"

	"lockstep/kernels"
)

// What dk and dv along lists take of a GPU, in pairs of a tile of all pairs (absorbed_dkv_wide.cu: 16,000 clocks for 128
// keys and 64 heads of a query) and for 64 heads: an entry of a list (8 clocks of each of 34 blocks), and a tile of
// keys that a query reaches (300 clocks of each). Reckoned, not measured.
const (
	listedHeads = 64
	listedEntry = 2.3
	listedTile  = 82
	listedKeys  = 1536 // of a tile
)

// keyGrad counts dk and dv of a part, whose queries read at most so many keys each (0: all up to their own): a GPU
// computes all pairs, or goes along lists where that is less.
func (d *Device) keyGrad(kv kernels.KV, l *kernels.Layout, most int, a kernels.Attn, part kernels.KeyPart,
	tensors ...kernels.Tensor) {
	if d.work == nil {
		return
	}
	all, listed, held := 0.0, 0.0, 0
	for _, keys := range part.Keys {
		held += keys[1] - keys[0]
		all += pairsOf(l, part, keys, l.Rows())
		listed += listedEntry*pairsOf(l, part, keys, most) + listedTile*reached(l, part, keys)
	}
	if heads := (a.Heads + listedHeads - 1) / listedHeads * listedHeads; most > 0 {
		all = min(all, listed*float64(heads)/float64(a.Heads))
	}
	_, share := divided(a)
	d.pairs(AttentionBackward, kv, share*all, float64(held), a, tensors...)
}

// pairsOf is how many pairs the queries of a part have with a range of keys, where each reads at most so many, any of
// those before it as likely as another.
func pairsOf(l *kernels.Layout, part kernels.KeyPart, keys [2]int, most int) (n float64) {
	eachRange(l, part, keys, func(first, end, from, to float64) {
		// queries among the keys, then those behind them; of both, those that read all keys, then the others
		among, behind := [2]float64{max(from, first), min(to, end)}, [2]float64{max(from, end), to}
		if q := among; q[0] < q[1] {
			all := min(max(q[0], float64(most)), q[1])
			n += (all-q[0])*(q[0]+all+1-2*first)/2 + float64(most)*((q[1]-all)-first*math.Log(q[1]/all))
		}
		if q := behind; q[0] < q[1] {
			all := min(max(q[0], float64(most)), q[1])
			n += (end - first) * (all - q[0] + float64(most)*math.Log(q[1]/all))
		}
	})
	return n
}

// reached is how many tiles of a range of keys the queries of a part reach, each counted.
func reached(l *kernels.Layout, part kernels.KeyPart, keys [2]int) (n float64) {
	eachRange(l, part, keys, func(first, end, from, to float64) {
		for at := first; at < end; at += listedKeys {
			n += max(0, to-max(from, at))
		}
	})
	return n
}

// eachRange visits the positions [first, end) of a range of keys in each sequence, and [from, to) of the part's queries.
func eachRange(l *kernels.Layout, part kernels.KeyPart, keys [2]int, visit func(first, end, from, to float64)) {
	for _, s := range l.Spans {
		first, end := max(keys[0]-s.Row, 0), min(keys[1]-s.Row, s.Rows)
		from, to := max(part.From-s.Row, 0), min(part.To-s.Row, s.Rows)
		if first < end && max(first, from) < to {
			visit(float64(first), float64(end), float64(from), float64(to))
		}
	}
}
