package bench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/kernels/meta"
	"lockstep/parallel"
)

// operation makes operands in an arena and returns the operations to time; nil: the device has none of the kind.
type operation func(dev kernels.Device, mem *kernels.Arena) func()

// product is an operation whose rate is that of a kind of work.
type product struct {
	name string
	kind meta.Kind
	of   func(r *configs.MachineRates) *float64
	operation
}

// scored is attention, forward or backward, whose products and scores have a rate each: operations of narrow and wide
// heads with as many scores.
type scored struct {
	name         string
	kind, scores meta.Kind
	of, ofScores func(r *configs.MachineRates) *float64
	narrow, wide operation
}

// machineWork is what [Machine] times: copies, operations that do nothing, products and attention.
type machineWork struct {
	copy, calls operation
	products    []product
	attention   []scored
}

// sizes of operands, by device: those of large models on a GPU, and what a CPU does in a moment.
type machineSizes struct {
	copied             int // bytes
	dense              int // rows, columns and depth
	experts, rows      int // grouped products
	cols, depth        int
	heads, length      int // attention, of 64 columns and of 128
	latent             int // rows of absorbed attention
	recurrent, chunked int // heads and rows of a recurrence
}

// operands are their sizes.
func (o MachineOptions) operands() machineSizes {
	switch {
	case o.sizes != nil:
		return *o.sizes
	case o.Device == devices.CUDA:
		return machineSizes{copied: 1 << 30, dense: 8192, experts: 32, rows: 1027, cols: 4096, depth: 7168, heads: 32,
			length: 8192, latent: 4096, recurrent: 32, chunked: 8192}
	}
	return machineSizes{copied: 64 << 20, dense: 512, experts: 8, rows: 64, cols: 512, depth: 256, heads: 4,
		length: 256, latent: 64, recurrent: 2, chunked: 256}
}

func machineOperations(kind string, s machineSizes) machineWork {
	d := kernels.F32
	if kind == devices.CUDA {
		d = kernels.BF16
	}
	return machineWork{copy: s.copy(d), calls: manyCalls, products: []product{
		{"dense", meta.Dense, func(r *configs.MachineRates) *float64 { return &r.Dense }, s.square(d)},
		{"grouped", meta.Grouped, func(r *configs.MachineRates) *float64 { return &r.Grouped }, s.grouped(d)},
		{"latent", meta.Latent, func(r *configs.MachineRates) *float64 { return &r.Latent }, s.absorbed(d, false)},
		{"latent backward", meta.LatentBackward,
			func(r *configs.MachineRates) *float64 { return &r.LatentBackward }, s.absorbed(d, true)},
		{"recurrence", meta.Recurrence, func(r *configs.MachineRates) *float64 { return &r.Recurrence },
			s.recurrence(d)},
	}, attention: []scored{
		{"attention", meta.Attention, meta.Scores, func(r *configs.MachineRates) *float64 { return &r.Attention },
			func(r *configs.MachineRates) *float64 { return &r.Scores }, s.attention(d, 64, false),
			s.attention(d, 128, false)},
		{"attention backward", meta.AttentionBackward, meta.ScoresBackward,
			func(r *configs.MachineRates) *float64 { return &r.AttentionBackward },
			func(r *configs.MachineRates) *float64 { return &r.ScoresBackward }, s.attention(d, 64, true),
			s.attention(d, 128, true)},
	}}
}

// work is what a meta device counts of the operations.
func (op operation) work(dev kernels.Device) meta.Work {
	d := meta.New(dev.Definition(), dev.Spare())
	body := op(d, kernels.NewArena(d))
	d.CountWork(true)
	body()
	return d.Work()
}

// time is the seconds of a round of the operations, of rounds that take about so long.
func (op operation) time(r *parallel.Rank, each time.Duration) (float64, error) {
	defer r.Stack.Release(r.Stack.Mark())
	body := op(r.Dev, r.Stack)
	body()
	for rounds := 1; ; rounds *= 2 {
		if err := r.Dev.Sync(); err != nil {
			return 0, err
		}
		began := time.Now()
		for range rounds {
			body()
		}
		if err := r.Dev.Sync(); err != nil {
			return 0, err
		}
		if took := time.Since(began); took >= each {
			return took.Seconds() / float64(rounds), nil
		}
	}
}

// operand is random numbers of about 1/16: constant ones would take less power.
func operand(dev kernels.Device, t kernels.Tensor) kernels.Tensor {
	if kernels.IsMeta(dev) {
		return t
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var block []byte
	for range min(t.Len(), 1<<16) {
		x := float32(rng.NormFloat64()) / 16
		if t.DType == kernels.BF16 {
			block = binary.LittleEndian.AppendUint16(block, kernels.RoundBF16(x))
		} else {
			block = binary.LittleEndian.AppendUint32(block, math.Float32bits(x))
		}
	}
	raw := make([]byte, t.Bytes())
	for at := 0; at < len(raw); at += len(block) {
		copy(raw[at:], block)
	}
	dev.Write(t, raw)
	return t
}

func (s machineSizes) copy(d kernels.DType) operation {
	return func(dev kernels.Device, mem *kernels.Arena) func() {
		rows := s.copied / 2 / d.Size() / 4096
		dst, src := mem.New(d, rows, 4096), operand(dev, mem.New(d, rows, 4096))
		return func() { dev.Copy(dst, src) }
	}
}

// manyCalls is a repeated sequence of operations on one number.
func manyCalls(dev kernels.Device, mem *kernels.Arena) func() {
	x := mem.Zeros(kernels.F32, 1, 1)
	return func() {
		kernels.Repeat(dev, "calls", func() {
			for range 1024 {
				dev.Scale(x, x, 1)
			}
		})
	}
}

func (s machineSizes) square(d kernels.DType) operation {
	return func(dev kernels.Device, mem *kernels.Arena) func() {
		n := s.dense
		out, x, w := mem.New(d, n, n), operand(dev, mem.New(d, n, n)), operand(dev, mem.New(d, n, n))
		return func() { dev.MatMul(out, nil, kernels.Term{X: x, W: w}) }
	}
}

func (s machineSizes) grouped(d kernels.DType) operation {
	return func(dev kernels.Device, mem *kernels.Arena) func() {
		rows := s.experts * s.rows
		out, x := mem.New(d, rows, s.cols), operand(dev, mem.New(d, rows, s.depth))
		w := operand(dev, mem.NewGrouped(d, s.experts, s.cols, s.depth))
		var offsets []byte
		for i := range s.experts + 1 {
			offsets = binary.LittleEndian.AppendUint32(offsets, uint32(i*s.rows))
		}
		g := &kernels.Groups{Offsets: mem.New(kernels.I32, 1, s.experts+1), Count: s.experts, Segments: 1}
		dev.Write(g.Offsets, offsets)
		return func() { dev.MatMul(out, g, kernels.Term{X: x, W: w}) }
	}
}

// sequence is a layout of one.
func sequence(rows int) *kernels.Layout {
	return &kernels.Layout{Spans: []kernels.Span{{Rows: rows}}, Segments: []int32{0, int32(rows)}}
}

func (s machineSizes) attention(d kernels.DType, dim int, backward bool) operation {
	return func(dev kernels.Device, mem *kernels.Arena) func() {
		a := kernels.Attn{Heads: s.heads, KVHeads: max(s.heads/4, 1), HeadDim: dim, Scale: 0.088}
		l, rows := sequence(s.length), s.length
		q, out := operand(dev, mem.New(d, rows, a.Heads*dim)), mem.New(d, rows, a.Heads*dim)
		kv := kernels.KV{K: operand(dev, mem.New(d, rows, a.KVHeads*dim)),
			V: operand(dev, mem.New(d, rows, a.KVHeads*dim))}
		lse := mem.New(kernels.F32, rows, a.Heads)
		forward := func() { dev.Attention(out, lse, q, kv, l, a) }
		if !backward {
			return forward
		}
		dout, dq := operand(dev, mem.New(d, rows, a.Heads*dim)), mem.New(d, rows, a.Heads*dim)
		dk, dv := mem.New(d, rows, a.KVHeads*dim), mem.New(d, rows, a.KVHeads*dim)
		forward()
		return func() { dev.AttentionBackward(dq, dk, dv, dout, out, lse, q, kv, l, a) }
	}
}

// absorbed is two sequences of absorbed latent attention, 576 columns of which 512 are values: one key for all heads.
func (s machineSizes) absorbed(d kernels.DType, backward bool) operation {
	return func(dev kernels.Device, mem *kernels.Arena) func() {
		const dim, values = 576, 512
		a := kernels.Attn{Heads: 2 * s.heads, KVHeads: 1, HeadDim: dim, ValueDim: values, Scale: 0.042,
			Latent: true}
		rows := 2 * s.latent
		l := &kernels.Layout{Spans: []kernels.Span{{Rows: s.latent}, {Row: s.latent, Rows: s.latent}},
			Segments: []int32{0, int32(rows)}}
		k := operand(dev, mem.New(d, rows, dim))
		kv := kernels.KV{K: k, V: k.ColRange(0, values)}
		q, out := operand(dev, mem.New(d, rows, a.Heads*dim)), mem.New(d, rows, a.Heads*values)
		lse := mem.New(kernels.F32, rows, a.Heads)
		forward := func() { dev.Attention(out, lse, q, kv, l, a) }
		if !backward {
			return forward
		}
		forward()
		dout := operand(dev, mem.New(d, rows, a.Heads*values))
		dq, dk, dv := mem.New(d, rows, a.Heads*dim), mem.New(d, rows, dim), mem.New(d, rows, values)
		return func() { dev.AttentionBackward(dq, dk, dv, dout, out, lse, q, kv, l, a) }
	}
}

func (s machineSizes) recurrence(d kernels.DType) operation {
	return func(dev kernels.Device, mem *kernels.Arena) func() {
		const dim = 128
		of := kernels.Recurrence{KeyHeads: max(s.recurrent/2, 1), Heads: s.recurrent, KeyDim: dim, ValueDim: dim}
		rows, l := s.chunked, sequence(s.chunked)
		x := kernels.DeltaRuleOperands{Q: operand(dev, mem.New(d, rows, of.KeyHeads*dim)),
			K: operand(dev, mem.New(d, rows, of.KeyHeads*dim)), V: operand(dev, mem.New(d, rows, of.Heads*dim)),
			G: mem.Zeros(kernels.F32, rows, of.Heads), B: operand(dev, mem.New(d, rows, of.Heads))}
		out := mem.New(d, rows, of.Heads*dim)
		return func() { dev.(kernels.DeltaNet).DeltaRule(out, x, nil, l, of) }
	}
}
