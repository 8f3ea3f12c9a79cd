//go:build cuda

package selftest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"lockstep/kernels"
	"lockstep/kernels/cuda/attention"
)

// CheckQuantizedCache runs the kernels that store pages in codes and read them, by shapes of decoding and of a prefill,
// once.
func (d *Checks) CheckQuantizedCache(a kernels.Attn) error {
	what := fmt.Sprintf("attention to pages in codes, of %d heads on %d, keys of %d columns and values of %d", a.Heads,
		a.KVHeads, a.HeadDim, a.Values())
	if !attention.Supports(a) {
		return fmt.Errorf("does not compute %s yet", what)
	}
	heads := min(a.Heads/a.KVHeads, checkHeads)
	a.KVHeads, a.Window = min(a.KVHeads, 2), 0
	a.Heads = heads * a.KVHeads
	return d.checkOnce(what, func(d kernels.Device, mem *kernels.Arena, r *rand.Rand) kernels.Tensor {
		return runPagesOfCodes(newLayerCheck(d, mem, r), a)
	})
}

// runPagesOfCodes stores a sequence in pages and reads all rows from them, some and one, and where values are columns
// of their keys chosen keys too.
func runPagesOfCodes(t layerCheck, a kernels.Attn) kernels.Tensor {
	const pageRows, chosen = 16, 8
	pages := []int32{3, 0, 4, 1, 2}
	absorbed := attention.Absorbed(a)
	kv := kernels.NewQuantizedKV(t.mem, kernels.BF16, a, absorbed, len(pages)*pageRows, pageRows)
	q, k, v := t.rows(a.Heads*a.HeadDim), t.rows(a.KVHeads*a.HeadDim), t.rows(a.KVHeads*a.Values())
	if absorbed {
		v = k.ColRange(0, a.Values())
	}
	from := func(pos int) *kernels.Layout {
		rows := layerRows - pos
		return &kernels.Layout{Spans: []kernels.Span{{Rows: rows, Pos: pos, Pages: pages}},
			Segments: []int32{0, int32(rows)}}
	}
	t.d.StoreKV(kv, k, v, from(0))
	for _, pos := range []int{0, layerRows - 5, layerRows - 1} {
		l, rows, own := from(pos), layerRows-pos, q.RowRange(pos, layerRows)
		t.d.Attention(t.result(kernels.BF16, rows, a.Heads*a.Values()), t.result(kernels.F32, rows, a.Heads), own, kv,
			l, a)
		if !absorbed || !attention.SupportsSparse(a) {
			continue
		}
		var lists []byte // keys at equal distances, or all where there are fewer
		for i := range rows * chosen {
			keys, key := pos+i/chosen+1, i%chosen
			if keys > chosen {
				key = key * keys / chosen
			} else if key >= keys {
				key = -1
			}
			lists = binary.LittleEndian.AppendUint32(lists, uint32(key))
		}
		indices := t.mem.New(kernels.I32, rows, chosen)
		t.d.Write(indices, lists)
		t.d.(kernels.SparseAttention).SparseAttend(t.result(kernels.BF16, rows, a.Heads*a.Values()),
			t.result(kernels.F32, rows, a.Heads), own, kv, indices, l, a)
	}
	return t.all()
}
