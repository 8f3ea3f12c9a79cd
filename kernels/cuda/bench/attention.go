//go:build cuda

package bench

import (
	"fmt"
	"math"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
)

// AttentionCase is attention of a benchmark. With Sequences it is a decoding step: each has one query on Keys keys in
// pages; else one causal sequence of Keys rows. With ValueDim values are so many columns of their keys: absorbed latent
// attention.
type AttentionCase struct{ Heads, KVHeads, HeadDim, ValueDim, Sequences, Keys int }

// AttentionCases are the shapes of the project's tables; configs/peers/cuda_attention.py times the same.
var AttentionCases = []AttentionCase{
	{Heads: 32, KVHeads: 32, HeadDim: 128, Keys: 8192},
	{Heads: 32, KVHeads: 32, HeadDim: 64, Keys: 8192},
	{Heads: 32, KVHeads: 8, HeadDim: 128, Keys: 8192},
	{Heads: 16, KVHeads: 2, HeadDim: 256, Keys: 8192},
	{Heads: 16, KVHeads: 2, HeadDim: 256, Keys: 32768},
	{Heads: 32, KVHeads: 8, HeadDim: 128, Sequences: 256, Keys: 4096},
	{Heads: 32, KVHeads: 8, HeadDim: 64, Sequences: 256, Keys: 4096},
	{Heads: 32, KVHeads: 8, HeadDim: 128, Sequences: 8, Keys: 4096},
	{Heads: 64, KVHeads: 1, HeadDim: 576, ValueDim: 512, Keys: 8192},
	{Heads: 64, KVHeads: 1, HeadDim: 576, ValueDim: 512, Sequences: 256, Keys: 4096},
}

const pageRows = 64 // rows of a page

// Attention times attention, about `each` for every line. Flops are counted as usual: two for a column of keys and
// of values and a visible pair of query and key, 2.5 times as many for the backward.
func Attention(d *cuda.Device, each time.Duration, cases []AttentionCase) (results []Result) {
	for _, c := range cases {
		keep, mem := d.Held(), kernels.NewArena(d)
		if c.Sequences > 0 {
			results = append(results, decode(d, each, c, mem)...)
		} else {
			results = append(results, causal(d, each, c, mem)...)
		}
		d.Release(keep)
	}
	return results
}

func (c AttentionCase) attn() kernels.Attn {
	return kernels.Attn{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, ValueDim: c.ValueDim,
		Scale: 1 / math.Sqrt(float64(c.HeadDim)), Latent: c.KVHeads == 1 && c.ValueDim > 0}
}

func (c AttentionCase) String() string {
	if c.ValueDim > 0 {
		return fmt.Sprintf("absorbed attention, %d heads of %d and %d", c.Heads, c.HeadDim, c.ValueDim)
	}
	return fmt.Sprintf("attention, %d heads of %d on %d", c.Heads, c.HeadDim, c.KVHeads)
}

// keys are keys and values of a benchmark, and the bytes that have to be read of them.
func keys(d *cuda.Device, mem *kernels.Arena, c AttentionCase, rows, pageRows int) (kv kernels.KV, bytes float64) {
	kv = kernels.KV{K: RandomRows(d, mem, rows, c.KVHeads*c.HeadDim), PageRows: pageRows}
	if c.ValueDim > 0 {
		kv.V = kv.K.ColRange(0, c.ValueDim)
		return kv, float64(kv.K.Bytes())
	}
	kv.V = RandomRows(d, mem, rows, c.KVHeads*c.HeadDim)
	return kv, float64(kv.K.Bytes() + kv.V.Bytes())
}

func causal(d *cuda.Device, each time.Duration, c AttentionCase, mem *kernels.Arena) []Result {
	n, a := c.Keys, c.attn()
	width, values := c.Heads*a.HeadDim, c.Heads*a.Values()
	q, out, dout, dq := RandomRows(d, mem, n, width), mem.New(kernels.BF16, n, values), RandomRows(d, mem, n, values),
		mem.New(kernels.BF16, n, width)
	kv, _ := keys(d, mem, c, n, 0)
	dk, dv, lse := mem.New(kernels.BF16, n, kv.K.Cols), mem.New(kernels.BF16, n, kv.V.Cols),
		mem.New(kernels.F32, n, c.Heads)
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: n}}, Segments: []int32{0, int32(n)}}
	forward := func() { d.Attention(out, lse, q, kv, l, a) }
	backward := func() { d.AttentionBackward(dq, dk, dv, dout, out, lse, q, kv, l, a) }
	flops := float64(n) * float64(n+1) / 2 * 2 * float64(width+values)
	name := fmt.Sprintf("%s, %d rows", c, n)
	return []Result{
		{Case: name + ", forward", Seconds: Time(d, each, forward), Flops: flops},
		{Case: name + ", forward and backward", Seconds: Time(d, each, func() {
			forward()
			backward()
		}), Flops: 3.5 * flops},
	}
}

// decode times a decoding step over pages of bf16, and over the same keys and values in codes.
func decode(d *cuda.Device, each time.Duration, c AttentionCase, mem *kernels.Arena) []Result {
	l := &kernels.Layout{Segments: []int32{0, int32(c.Sequences)}}
	for i := range c.Sequences {
		s := kernels.Span{Row: i, Rows: 1, Pos: c.Keys - 1}
		for p := range c.Keys / pageRows {
			s.Pages = append(s.Pages, int32(p*c.Sequences+i))
		}
		l.Spans = append(l.Spans, s)
	}
	rows, a := c.Sequences*c.Keys, c.attn()
	kv, bytes := keys(d, mem, c, rows, pageRows)
	q, out, lse := RandomRows(d, mem, c.Sequences, c.Heads*c.HeadDim), mem.New(kernels.BF16, c.Sequences,
		c.Heads*a.Values()), mem.New(kernels.F32, c.Sequences, c.Heads)
	numbers := Result{
		Case:    fmt.Sprintf("%s, decoding %d sequences of %d keys", c, c.Sequences, c.Keys),
		Seconds: Time(d, each, func() { d.Attention(out, lse, q, kv, l, a) }), Bytes: bytes,
	}
	coded := quantizedKeys(d, mem, c, kv, l)
	codes := Result{Seconds: Time(d, each, func() { d.Attention(out, lse, q, coded, l, a) }),
		Bytes: float64(kernels.QuantizedKVBytes(kernels.BF16, a, c.ValueDim > 0, rows))}
	codes.Case = fmt.Sprintf("%s, cache in MXFP8: %.2f times bf16's rate", numbers.Case, numbers.Seconds/codes.Seconds)
	return []Result{numbers, codes}
}

// quantizedKeys are pages in codes of a decoding step's keys and values.
func quantizedKeys(d *cuda.Device, mem *kernels.Arena, c AttentionCase, kv kernels.KV, l *kernels.Layout) kernels.KV {
	out := kernels.NewQuantizedKV(mem, kernels.BF16, c.attn(), c.ValueDim > 0, kv.K.Rows, pageRows)
	for i, s := range l.Spans {
		s.Row, s.Pos, s.Rows = 0, 0, c.Keys
		rows := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(i*c.Keys, (i+1)*c.Keys) }
		d.StoreKV(out, rows(kv.K), rows(kv.V), &kernels.Layout{Spans: []kernels.Span{s},
			Segments: []int32{0, int32(c.Keys)}})
	}
	return out
}
