package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lockstep/kernels"
)

// benchAttn is a batch of equal sequences and the flops of its visible pairs: 4 a pair and head dim forward, 10
// backward.
func benchAttn(heads, kvHeads, dim, sequences, length int) (attnCase, float64) {
	rng := rand.New(rand.NewPCG(1, 1))
	lengths := make([]int, sequences)
	for i := range lengths {
		lengths[i] = length
	}
	c := newAttnCase(rng, plainKind, heads/kvHeads, kvHeads, dim, 0, lengths...)
	return c, float64(sequences*length) * float64(length+1) / 2 * float64(heads*dim)
}

// BenchmarkAttention counts visible pairs only, so that half a tile on the diagonal is lost work.
func BenchmarkAttention(b *testing.B) {
	dev, err := New(kernels.Default(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	for _, shape := range []struct{ heads, kvHeads, dim, sequences, length int }{
		{8, 2, 32, 64, 64}, {8, 2, 32, 1, 4096}, {16, 8, 128, 64, 64}, {16, 8, 128, 1, 4096},
	} {
		c, work := benchAttn(shape.heads, shape.kvHeads, shape.dim, shape.sequences, shape.length)
		batch := c.pack(ints(shape.sequences))
		kv := kernels.KV{K: batch.k, V: batch.v}
		name := fmt.Sprintf("heads=%d/%d/dim=%d/%dx%d", shape.heads, shape.kvHeads, shape.dim, shape.sequences,
			shape.length)
		b.Run("forward/"+name, func(b *testing.B) {
			reportFlops(b, dev, 4*work, func() {
				dev.Attention(batch.out, batch.lse, batch.q, kv, batch.layout, c.Attn)
			})
		})
		grad := func() kernels.Tensor { return attnTensor(c.dtype, nil, batch.q.Rows, batch.q.Cols, 0) }
		dq, dk, dv := grad(), attnTensor(c.dtype, nil, batch.k.Rows, batch.k.Cols, 0),
			attnTensor(c.dtype, nil, batch.k.Rows, batch.k.Cols, 0)
		b.Run("backward/"+name, func(b *testing.B) {
			reportFlops(b, dev, 10*work, func() {
				dev.AttentionBackward(dq, dk, dv, batch.q, batch.out, batch.lse, batch.q, kv, batch.layout, c.Attn)
			})
		})
	}
}

// reportFlops times f. The peak is that of fused multiply-adds on registers by the device's threads, just before and
// after.
func reportFlops(b *testing.B, dev *Device, flops float64, f func()) {
	peak := dev.mm.Peak(dev.pool.threads, dev.pool.each, 20*time.Millisecond)
	for b.Loop() {
		f()
	}
	rate := flops * float64(b.N) / b.Elapsed().Seconds()
	peak = (peak + dev.mm.Peak(dev.pool.threads, dev.pool.each, 20*time.Millisecond)) / 2
	b.ReportMetric(rate/1e9, "GFLOP/s")
	b.ReportMetric(rate/peak, "of-peak")
}

// BenchmarkAttentionDecode is one step of 32 sequences of 1000 keys in pages of 64, as numbers and in codes: bytes are
// the keys and values of the former.
func BenchmarkAttentionDecode(b *testing.B) {
	dev, err := New(kernels.Default(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	for _, shape := range []struct{ heads, kvHeads, dim int }{{8, 2, 32}, {16, 8, 128}} {
		const sequences, length, pageRows = 32, 1000, 64
		rng := rand.New(rand.NewPCG(1, 1))
		c := newAttnCase(rng, plainKind, shape.heads/shape.kvHeads, shape.kvHeads, shape.dim, 0)
		const pages = (length + pageRows - 1) / pageRows
		nk := shape.kvHeads * shape.dim
		cache := func() kernels.Tensor {
			return attnTensor(c.dtype, attnRandom(rng, c.dtype, sequences*pages*pageRows*nk, 1),
				sequences*pages*pageRows, nk, 0)
		}
		kv := kernels.KV{K: cache(), V: cache(), PageRows: pageRows}
		l := &kernels.Layout{Segments: []int32{0, sequences}}
		for s := range sequences {
			span := kernels.Span{Row: s, Rows: 1, Pos: length - 1}
			for p := range pages {
				span.Pages = append(span.Pages, int32(p*sequences+s))
			}
			l.Spans = append(l.Spans, span)
		}
		q := attnTensor(c.dtype, attnRandom(rng, c.dtype, sequences*shape.heads*shape.dim, 1), sequences,
			shape.heads*shape.dim, 0)
		out, lse := attnTensor(c.dtype, nil, sequences, q.Cols, 0), attnTensor(kernels.F32, nil, sequences, shape.heads,
			0)
		coded := kernels.NewQuantizedKV(kernels.NewArena(dev), c.dtype, c.Attn, false, kv.K.Rows, pageRows)
		for name, kv := range map[string]kernels.KV{"numbers": kv, "codes": coded} {
			b.Run(fmt.Sprintf("heads=%d/%d/dim=%d/%s", shape.heads, shape.kvHeads, shape.dim, name),
				func(b *testing.B) {
					b.SetBytes(2 * 4 * sequences * length * int64(nk))
					for b.Loop() {
						dev.Attention(out, lse, q, kv, l, c.Attn)
					}
				})
		}
	}
}
