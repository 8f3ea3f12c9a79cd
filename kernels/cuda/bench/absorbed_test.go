//go:build cuda

package bench

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/kernels/cuda/cudatest"
)

// BenchmarkAbsorbed holds the kernels of 576 and 512 columns side by side: dense and along lists, of keys that any
// query chooses or of the first ones, which lie in L2; decoding with few sequences and few heads. It is for -benchtime
// 1x.
func BenchmarkAbsorbed(b *testing.B) {
	const each = 100 * time.Millisecond
	d := cudatest.Card.(*cuda.Device)
	defer func() { d.Path = "" }()
	keep := d.Held()
	defer func() { d.Release(keep) }()
	c, mem := SparseCases[0], kernels.NewArena(d)
	c.Keys = 16384
	n, a, x := c.Keys, c.attn(), c.Index
	q, out, lse, latents := RandomRows(d, mem, n, c.Heads*a.HeadDim), mem.New(kernels.BF16, n, c.Heads*a.ValueDim),
		mem.New(kernels.F32, n, c.Heads), RandomRows(d, mem, n, a.HeadDim)
	queries, keys, weights := RandomRows(d, mem, n, x.Heads*x.Dim), kernels.KV{K: RandomRows(d, mem, n, x.Dim)},
		mem.New(kernels.F32, n, x.Heads)
	d.Copy(weights, queries.ColRange(0, x.Heads))
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Segments: []int32{0, int32(n)}}
	selected, first := mem.New(kernels.I32, n, x.TopK), mem.New(kernels.I32, n, x.TopK)
	d.SelectKeys(selected, queries, weights, keys, l, x)
	raw := make([]byte, 0, first.Bytes())
	for range n {
		for k := range x.TopK {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(k))
		}
	}
	d.Write(first, raw)
	cases := []AttentionCase{{64, 1, 576, 512, 0, 8192}}
	// heads, sequences
	for _, decoding := range [][2]int{{64, 256}, {64, 32}, {64, 4}, {64, 1}, {16, 256}, {16, 4}, {128, 4}} {
		cases = append(cases, AttentionCase{decoding[0], 1, 576, 512, decoding[1], 4096})
	}
	for _, form := range []string{"portable", ""} {
		b.Run(form, func(b *testing.B) {
			d.Path = form
			for name, indices := range map[string]kernels.Tensor{"any": selected, "the first": first} {
				seconds := Time(d, each, func() { d.SparseAttend(out, lse, q, shared(latents, a, 0), indices, l, a) })
				flops := pairs(n, x.TopK) * 2 * float64(c.Heads*(a.HeadDim+a.ValueDim))
				b.Logf("sparse, %d rows, %s of the keys: %.3f ms, %.0f TFLOP/s", n, name, seconds*1e3,
					flops/seconds/1e12)
			}
			for _, r := range Attention(d, each, cases) {
				b.Logf("%s: %.3f ms, %.0f TFLOP/s, %.0f GB/s", r.Case, r.Seconds*1e3, r.Flops/r.Seconds/1e12,
					r.Bytes/r.Seconds/1e9)
			}
		})
	}
}

// BenchmarkAbsorbedBackward is the gradient of 64 heads, dense and along lists of 2,048 keys that any query selects, by
// kernel. It is for -benchtime 1x.
func BenchmarkAbsorbedBackward(b *testing.B) {
	const each, rows, topK = 100 * time.Millisecond, 8192, 2048
	d := cudatest.Card.(*cuda.Device)
	keep := d.Held()
	defer func() { d.Path = ""; d.Release(keep) }()
	a, mem := SparseCases[0].attn(), kernels.NewArena(d)
	q, dq := RandomRows(d, mem, rows, a.Heads*a.HeadDim), mem.New(kernels.BF16, rows, a.Heads*a.HeadDim)
	out, dout := mem.New(kernels.BF16, rows, a.Heads*a.ValueDim), RandomRows(d, mem, rows, a.Heads*a.ValueDim)
	k, lse := RandomRows(d, mem, rows, a.HeadDim), mem.New(kernels.F32, rows, a.Heads)
	dk, dv, indices := mem.New(kernels.BF16, rows, a.HeadDim), mem.New(kernels.BF16, rows, a.ValueDim),
		mem.New(kernels.I32, rows, topK)
	for _, c := range []struct{ sequences, topK int }{{2, topK}, {1, topK}, {2, 0}, {1, 0}} {
		n := rows / c.sequences
		l := &kernels.Layout{Segments: []int32{0, rows}}
		for i := range c.sequences {
			l.Spans = append(l.Spans, kernels.Span{Row: i * n, Rows: n})
		}
		forward, backward := func() {
			d.Attention(out, lse, q, shared(k, a, 0), l, a)
		}, func() { d.AttentionBackward(dq, dk, dv, dout, out, lse, q, shared(k, a, 0), l, a) }
		if c.topK > 0 {
			d.Write(indices, cudatest.Lists(l, c.topK, false).Raw)
			forward = func() { d.SparseAttend(out, lse, q, shared(k, a, 0), indices, l, a) }
			backward = func() { d.SparseAttendBackward(dq, dk, dv, dout, out, lse, q, shared(k, a, 0), indices, l, a) }
		}
		forms := []string{"portable", "pairs"}
		if c.topK > 0 {
			forms = append(forms, "lists")
		}
		for _, form := range forms {
			name := fmt.Sprintf("%d sequences of %d rows, lists of %d, %q", c.sequences, n, c.topK, form)
			b.Run(name, func(b *testing.B) {
				d.Path = form
				forward()
				seconds := Time(d, each, backward)
				b.Logf("%.3f ms", seconds*1e3)
				d.StartProfile()
				backward()
				for _, t := range d.StopProfile() {
					b.Logf("  %s: %d launches, %.3f ms", t.Kernel, t.Calls, t.Seconds*1e3)
				}
			})
		}
	}
}

// drawnLists is lists of the rows of a layout of one sequence, from row `from` on: keys that are drawn evenly.
func drawnLists(rows, from, topK int) []byte {
	v := make([]byte, 0, 4*rows*topK)
	at := make([]float64, topK+1)
	for i := range rows {
		n, sum := from+i+1, 0.0
		for k := range at {
			sum -= math.Log(1 - cudatest.Rand.Float64())
			at[k] = sum
		}
		for k := range topK {
			key := int32(-1)
			switch {
			case n > topK:
				key = int32(k + int(at[k]/sum*float64(n-topK)))
			case k < n:
				key = int32(k)
			}
			v = binary.LittleEndian.AppendUint32(v, uint32(key))
		}
	}
	return v
}

// BenchmarkAbsorbedKeys is dk and dv of 64 heads by 8,192 queries in the middle of sequences of several lengths, along
// lists of 2,048 keys that are drawn evenly, by kernel. It is for -benchtime 1x.
func BenchmarkAbsorbedKeys(b *testing.B) {
	const topK, most = 2048, 8192
	d := cudatest.Card.(*cuda.Device)
	defer func() { d.Path = "" }()
	a := SparseCases[0].attn()
	for _, rows := range []int{8192, 16384, 32768, 65536, 131072, 262144} {
		keep := d.Held()
		n := min(rows, most)
		from := (rows - n) / 2
		mem, l := kernels.NewArena(d), &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0,
			int32(rows)}}
		q, dout, k := RandomRows(d, mem, n, a.Heads*a.HeadDim), RandomRows(d, mem, n, a.Heads*a.ValueDim),
			RandomRows(d, mem, rows, a.HeadDim)
		lse, delta := mem.New(kernels.F32, n, a.Heads), mem.Zeros(kernels.F32, n, a.Heads)
		sums, indices := mem.Zeros(kernels.F32, rows, a.HeadDim+a.ValueDim), mem.New(kernels.I32, n, topK)
		dk, dv := mem.New(kernels.BF16, rows, a.HeadDim), mem.New(kernels.BF16, rows, a.ValueDim)
		d.Write(indices, drawnLists(n, from, topK))
		part := kernels.KeyPart{From: from, To: from + n, Keys: [][2]int{{0, rows}}}
		for _, path := range []string{"lists", "pairs"} {
			d.Path = path
			keys := func() {
				d.AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q, shared(k, a, 0), indices, l, a, part)
			}
			keys()
			seconds := Time(d, 50*time.Millisecond, keys)
			b.Logf("%d rows, queries %d to %d, %q: %.3f ms", rows, from, from+n, path, seconds*1e3)
			d.StartProfile()
			keys()
			for _, t := range d.StopProfile() {
				b.Logf("  %s: %d launches, %.3f ms", t.Kernel, t.Calls, t.Seconds*1e3)
			}
		}
		d.Release(keep)
	}
}
