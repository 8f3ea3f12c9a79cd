package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"lockstep/kernels"
)

// The scalar reference of attention, written from the definition with no tile, no page and no skipped key but masked
// blocks.

// attnCase is a set of sequences with queries, keys and values in position order.
type attnCase struct {
	kernels.Attn
	attnKind
	lengths []int
	q, k, v [][]float32         // by sequence: [T, heads*dim]
	sees    func(i, j int) bool // of the keys before it; nil: all
}

// latent is the case with the KV head as a latent.
func (c attnCase) latent() attnCase {
	c.Latent = true
	return c
}

func (c attnCase) String() string {
	return fmt.Sprintf("%v heads %d/%d dim %d/%d window %d lengths %v", c.attnKind, c.Heads, c.KVHeads, c.HeadDim,
		c.ValueDim, c.Window, c.lengths)
}

func newAttnCase(rng *rand.Rand, kind attnKind, group, kvHeads, dim, window int, lengths ...int) attnCase {
	return newValueCase(rng, kind, group, kvHeads, dim, dim, window, lengths...)
}

// newValueCase is newAttnCase with values of another width than queries and keys.
func newValueCase(rng *rand.Rand, kind attnKind, group, kvHeads, dim, values, window int, lengths ...int) attnCase {
	c := attnCase{
		Attn: kernels.Attn{Heads: group * kvHeads, KVHeads: kvHeads, HeadDim: dim, ValueDim: values,
			Scale: 1 / math.Sqrt(float64(dim)), Window: window},
		attnKind: kind, lengths: lengths,
	}
	for _, n := range lengths {
		c.q = append(c.q, attnRandom(rng, kind.dtype, n*group*kvHeads*dim, 2))
		c.k = append(c.k, attnRandom(rng, kind.dtype, n*kvHeads*dim, 1))
		c.v = append(c.v, attnRandom(rng, kind.dtype, n*kvHeads*values, 1))
	}
	return c
}

func attnRandom(rng *rand.Rand, dtype kernels.DType, n int, sigma float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = attnRound(dtype, float32(rng.NormFloat64()*sigma))
	}
	return x
}

func attnRound(dtype kernels.DType, x float32) float32 {
	if dtype == kernels.BF16 {
		return kernels.FromBF16(kernels.RoundBF16(x))
	}
	return x
}

// refDot continues a chain over x and y.
func refDot(mode kernels.DotMode, acc float32, x, y []float32) float32 {
	if mode == kernels.DotFMA {
		for i := range x {
			acc = kernels.FMA(x[i], y[i], acc)
		}
		return acc
	}
	for i := 0; i < len(x); i += 16 {
		n := min(i+16, len(x))
		acc = refStep16(acc, x[i:n], y[i:n])
	}
	return acc
}

// refStep16 is one step of DotTC16 for normal operands and results: every term is truncated to a multiple of
// 2^(top-25), which float64 does exactly, and so is the sum of at most 17 of them.
func refStep16(acc float32, x, y []float32) float32 {
	terms, exps := []float64{float64(acc)}, []int{math.Ilogb(float64(acc))}
	for i := range x {
		terms = append(terms, float64(x[i])*float64(y[i]))
		exps = append(exps, math.Ilogb(float64(x[i]))+math.Ilogb(float64(y[i])))
	}
	top := math.MinInt32
	for i, e := range exps {
		if terms[i] != 0 {
			top = max(top, e)
		}
	}
	if top == math.MinInt32 {
		return acc
	}
	sum := 0.0
	for _, v := range terms {
		sum += math.Trunc(math.Ldexp(v, 25-top))
	}
	toward0 := math.Float64frombits(math.Float64bits(sum) &^ (1<<29 - 1))
	return float32(math.Ldexp(toward0, top-25))
}

// refTree is the tree of n lanes, a power of two not below len(x).
func refTree(n int, x []float32) float32 {
	lanes := make([]float32, n)
	copy(lanes, x)
	for s := n / 2; s > 0; s /= 2 {
		for i := range s {
			lanes[i] += lanes[i+s]
		}
	}
	return lanes[0]
}

// head is the columns of a head of queries or keys, value those of values or outputs.
func (c attnCase) head(x []float32, pos, head, heads int) []float32 {
	return x[(pos*heads+head)*c.HeadDim:][:c.HeadDim]
}

func (c attnCase) value(x []float32, pos, head, heads int) []float32 {
	return x[(pos*heads+head)*c.ValueDim:][:c.ValueDim]
}

func (c attnCase) visible(i, j int) bool {
	return j <= i && (c.Window == 0 || j > i-c.Window) && (c.sees == nil || c.sees(i, j))
}

// forward is out and lse of one query.
func (c attnCase) forward(seq, i, head int) (out []float32, lse float32) {
	def := kernels.Default()
	def.KeySplit = c.split
	inf := float32(math.Inf(-1))
	m, l, o := inf, float32(0), make([]float32, c.ValueDim)
	for from := 0; from <= i; from += def.KeySplit {
		ms, ls, os := inf, float32(0), make([]float32, c.ValueDim)
		for b := from; b < from+def.KeySplit && b <= i; b += def.KeyBlock {
			ms, ls = c.block(seq, i, head, b, ms, ls, os)
		}
		if ms == inf {
			continue
		}
		to := max(m, ms)
		a, b := c.exp2.Func()(m-to), c.exp2.Func()(ms-to)
		l = float32(l*a) + float32(ls*b)
		for d := range o {
			o[d] = float32(o[d]*a) + float32(os[d]*b)
		}
		m = to
	}
	for d := range o {
		o[d] = attnRound(c.dtype, float32(o[d]*float32(1/l))+0)
	}
	return o, m + float32(kernels.Ln(l)*kernels.Log2E)
}

func (c attnCase) block(seq, i, head, from int, m, l float32, o []float32) (float32, float32) {
	block := kernels.Default().KeyBlock
	group := c.Heads / c.KVHeads
	scale := float32(c.Scale * math.Log2E)
	u, p := make([]float32, block), make([]float32, block)
	top, any := m, false
	for n := range block {
		if j := from + n; c.visible(i, j) {
			u[n] = refDot(c.dot, 0, c.head(c.q[seq], i, head, c.Heads), c.head(c.k[seq], j, head/group, c.KVHeads)) *
				scale
			top, any = max(top, u[n]), true
		}
	}
	if !any {
		return m, l
	}
	a := c.exp2.Func()(m - top)
	for n := range block {
		if c.visible(i, from+n) {
			p[n] = c.exp2.Func()(u[n] - top)
		}
	}
	l = float32(l*a) + refTree(block, p)
	for d := range o {
		v := make([]float32, block)
		for n := range block {
			if c.visible(i, from+n) {
				v[n] = c.value(c.v[seq], from+n, head/group, c.KVHeads)[d]
			}
			p[n] = attnRound(c.dtype, p[n])
		}
		o[d] = refDot(c.dot, float32(o[d]*a), p, v)
	}
	return top, l
}

// attnBatch is the tensors of a packed batch of all sequences of a case.
type attnBatch struct {
	q, k, v, out, lse kernels.Tensor
	layout            *kernels.Layout
}

func (c attnCase) pack(order []int) attnBatch {
	l := &kernels.Layout{Segments: []int32{0, 0}}
	var q, k, v []float32
	row := 0
	for _, s := range order {
		l.Spans = append(l.Spans, kernels.Span{Row: row, Rows: c.lengths[s]})
		row += c.lengths[s]
		q, k, v = append(q, c.q[s]...), append(k, c.k[s]...), append(v, c.v[s]...)
	}
	l.Segments[1] = int32(row)
	nq, nk, no, nv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.Heads*c.ValueDim, c.KVHeads*c.ValueDim
	return attnBatch{
		q: attnTensor(c.dtype, q, row, nq, 0), k: attnTensor(c.dtype, k, row, nk, 3), v: attnTensor(c.dtype, v, row, nv,
			16),
		out: attnTensor(c.dtype, nil, row, no, 5), lse: attnTensor(kernels.F32, nil, row, c.Heads, 0), layout: l,
	}
}

// attnTensor has rows with a gap between them; without values it is full of NaN.
func attnTensor(dtype kernels.DType, x []float32, rows, cols, gap int) kernels.Tensor {
	stride := cols + gap
	t := kernels.Tensor{DType: dtype, Groups: 1, Rows: rows, Cols: cols, Stride: stride}
	if dtype == kernels.F32 {
		t.Data = unsafe.Pointer(unsafe.SliceData(make([]float32, rows*stride)))
	} else {
		t.Data = unsafe.Pointer(unsafe.SliceData(make([]uint16, rows*stride)))
	}
	nan := float32(math.NaN())
	for r := range rows {
		for i := range cols {
			y := nan
			if x != nil {
				y = x[r*cols+i]
			}
			if dtype == kernels.F32 {
				t.F32s()[r*stride+i] = y
			} else {
				t.BF16s()[r*stride+i] = kernels.RoundBF16(y)
			}
		}
	}
	return t
}

// attnRow is a row of t in fp32.
func attnRow(t kernels.Tensor, row int) []float32 {
	x := make([]float32, t.Cols)
	for i := range x {
		if t.DType == kernels.F32 {
			x[i] = t.F32s()[row*t.Stride+i]
		} else {
			x[i] = kernels.FromBF16(t.BF16s()[row*t.Stride+i])
		}
	}
	return x
}

func attnDevices(t testing.TB, kind attnKind) []*Device {
	def := kernels.Default()
	def.Dot, def.Exp2, def.KeySplit = kind.dot, kind.exp2, kind.split
	var devs []*Device
	for i, isa := range []ISA{AVX512, AVX2, Portable} {
		dev, err := New(def, Options{Threads: 1 + i%2, ISA: isa})
		if err != nil {
			t.Log(err)
			continue
		}
		t.Cleanup(func() { dev.Close() })
		devs = append(devs, dev)
	}
	return devs
}

func sameBits(a, b []float32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

func ints(n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i
	}
	return x
}
