package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// attnKind is a storage type and a definition.
type attnKind struct {
	dtype kernels.DType
	dot   kernels.DotMode
	exp2  kernels.Exp2Mode
	split int // KeySplit
}

var (
	plainKind = attnKind{kernels.F32, kernels.DotFMA, kernels.Exp2Poly, 2048}
	ex2hKind  = attnKind{kernels.F32, kernels.DotFMA, kernels.Exp2Ex2h, 2048}
)

var attnKinds = []attnKind{
	plainKind, {kernels.BF16, kernels.DotFMA, kernels.Exp2Poly, 2048}, ex2hKind,
	{kernels.BF16, kernels.DotTC16, kernels.Exp2Ex2h, 2048},
	{kernels.F32, kernels.DotFMA, kernels.Exp2Poly, 64}, {kernels.BF16, kernels.DotTC16, kernels.Exp2Ex2h, 128},
}

// attnCases draws shapes that touch every path: groups, head dims, windows, many short sequences and lengths about the
// block.
func attnCases(rng *rand.Rand, kind attnKind) []attnCase {
	many := make([]int, 64)
	for i := range many {
		many[i] = 1 + rng.IntN(12)
	}
	c := func(group, kvHeads, dim, window int, lengths ...int) attnCase {
		return newAttnCase(rng, kind, group, kvHeads, dim, window, lengths...)
	}
	sharp := c(2, 1, 16, 0, 200) // maxima that leap so far that the decay of what came before is 0
	for i := range sharp.q[0] {
		sharp.q[0][i] *= 64
	}
	return []attnCase{
		sharp,
		c(1, 2, 16, 0, many...),
		c(2, 1, 32, 0, 63, 1, 64, 65),
		c(4, 2, 16, 9, 30, 130, 2),
		c(8, 1, 64, 0, 17, 40),
		c(1, 1, 128, 70, 150),
		c(1, 1, 16, 5, 200), // with splits of 64 the first two of a tile are masked for its last rows
		c(2, 1, 16, 100, 300),
		c(4, 1, 16, 64, 1+rng.IntN(200), 1+rng.IntN(100)),
		newValueCase(rng, kind, 1, 3, 24, 16, 0, 130, 5, 1),
		newValueCase(rng, kind, 2, 1, 48, 80, 20, 1+rng.IntN(100)),
	}
}

// train is the forward of the case as one packed batch.
func (c attnCase) train(dev *Device) attnBatch {
	b := c.pack(ints(len(c.lengths)))
	dev.Attention(b.out, b.lse, b.q, kernels.KV{K: b.k, V: b.v}, b.layout, c.Attn)
	return b
}

// checkForward compares rows from position first of each sequence with the scalar reference.
func (c attnCase) checkForward(t *testing.T, b attnBatch, first int) {
	t.Helper()
	for s, span := range b.layout.Spans {
		for i := first; i < span.Rows; i++ {
			out, lse := attnRow(b.out, span.Row+i), attnRow(b.lse, span.Row+i)
			for h := range c.Heads {
				wantOut, wantLSE := c.forward(s, i, h)
				if got := c.value(out, 0, h, c.Heads); !sameBits(got, wantOut) || lse[h] != wantLSE {
					t.Fatalf("%v: sequence %d position %d head %d:\n got %v lse %v\nwant %v lse %v", c, s, i, h, got,
						lse[h], wantOut, wantLSE)
				}
			}
		}
	}
}

// checkSame compares every row of two results of one layout.
func (c attnCase) checkSame(t *testing.T, what string, got, want attnBatch) {
	t.Helper()
	for r := range want.layout.Rows() {
		if !sameBits(attnRow(got.out, r), attnRow(want.out, r)) ||
			!sameBits(attnRow(got.lse, r), attnRow(want.lse, r)) {
			t.Fatalf("%v: %s: row %d differs", c, what, r)
		}
	}
}

func TestAttentionEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for _, c := range attnCases(rng, kind) {
			first := c.train(devs[0])
			c.checkForward(t, first, 0)
			for _, dev := range devs[1:] {
				c.checkSame(t, dev.Name(), c.train(dev), first)
			}
		}
	}
}

// Rows behind key 2048 merge two splits; with the window the first split of the last rows is partly, then wholly
// masked.
func TestAttentionSplits(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i, window := range []int{0, 40, 2050} {
		for j, kind := range attnKinds {
			// 2118 keys take their time: all kinds without a window, one with each
			if kind.split != 2048 || i > 0 && j != i-1 {
				continue
			}
			c := newAttnCase(rng, kind, 2, 1, 16, window, 2048+70)
			b := c.train(attnDevices(t, kind)[0])
			c.checkForward(t, b, 2040)
			c.checkSame(t, "pages of 16", c.serve(attnDevices(t, kind)[0], rng, 16, 700), b)
		}
	}
}

// serve runs the case through a paged cache: steps that mix decode rows and prefill chunks of up to maxChunk rows of
// some of the sequences, in any order. Pages are scattered, and rows that were not written are NaN. The result has the
// layout of train.
func (c attnCase) serve(dev *Device, rng *rand.Rand, pageRows, maxChunk int) attnBatch {
	all := c.pack(ints(len(c.lengths)))
	pages := 0
	for _, n := range c.lengths {
		pages += (n + pageRows - 1) / pageRows
	}
	free := rng.Perm(pages + 2)
	nk, nv := c.KVHeads*c.HeadDim, c.KVHeads*c.ValueDim
	kv := kernels.KV{K: attnTensor(c.dtype, nil, (pages+2)*pageRows, nk, 0), V: attnTensor(c.dtype, nil,
		(pages+2)*pageRows, nv, 0), PageRows: pageRows}
	tables, done := make([][]int32, len(c.lengths)), make([]int, len(c.lengths))
	for left := all.layout.Rows(); left > 0; {
		step := &kernels.Layout{}
		var q, k, v []float32
		var from []int // rows of the packed layout
		for _, s := range rng.Perm(len(c.lengths)) {
			n := min(1+rng.IntN(maxChunk)*rng.IntN(2), c.lengths[s]-done[s])
			if n == 0 || rng.IntN(3) == 0 {
				continue
			}
			for len(tables[s])*pageRows < done[s]+n {
				tables[s], free = append(tables[s], int32(free[0])), free[1:]
			}
			step.Spans = append(step.Spans, kernels.Span{Row: len(from), Rows: n, Pos: done[s], Pages: tables[s]})
			for i := done[s]; i < done[s]+n; i++ {
				q, k, v = append(q, attnRowOf(c.q[s], i, c.Heads*c.HeadDim)...), append(k, attnRowOf(c.k[s], i, nk)...),
					append(v, attnRowOf(c.v[s], i, nv)...)
				from = append(from, all.layout.Spans[s].Row+i)
			}
			done[s] += n
		}
		rows := len(from)
		step.Segments = []int32{0, int32(rows)}
		out, lse := attnTensor(c.dtype, nil, rows, c.Heads*c.ValueDim, 0), attnTensor(kernels.F32, nil, rows, c.Heads,
			0)
		dev.StoreKV(kv, attnTensor(c.dtype, k, rows, nk, 1), attnTensor(c.dtype, v, rows, nv, 2), step)
		dev.Attention(out, lse, attnTensor(c.dtype, q, rows, c.Heads*c.HeadDim, 0), kv, step, c.Attn)
		for r, to := range from {
			copyRow(all.out, to, out, r)
			copyRow(all.lse, to, lse, r)
		}
		left -= rows
	}
	return all
}

func attnRowOf(x []float32, i, cols int) []float32 { return x[i*cols:][:cols] }

func TestAttentionServesWhatItTrains(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for i, c := range attnCases(rng, kind) {
			want := c.train(devs[0])
			pageRows := []int{1, 3, 16, 64, 100, 256}[rng.IntN(6)]
			c.checkSame(t, "paged", c.serve(devs[i%len(devs)], rng, pageRows, 1+rng.IntN(80)), want)
		}
	}
}

// Another split gives other bits to rows that see more keys than it holds, and to no others.
func TestAttentionSplitDiffers(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	c := newAttnCase(rng, plainKind, 2, 1, 32, 0, 300, 256)
	want := c.train(attnDevices(t, c.attnKind)[0])
	c.split = 256
	got := c.train(attnDevices(t, c.attnKind)[0])
	for s, span := range want.layout.Spans {
		differ := 0
		for i := range span.Rows {
			same := sameBits(attnRow(got.out, span.Row+i), attnRow(want.out, span.Row+i)) &&
				sameBits(attnRow(got.lse, span.Row+i), attnRow(want.lse, span.Row+i))
			if !same {
				differ++
			}
			if !same && i < 256 {
				t.Fatalf("sequence %d row %d has one split and differs", s, i)
			}
		}
		if s == 0 && differ < 20 {
			t.Errorf("%d of 44 rows behind the split differ", differ)
		}
	}
}

// A batch's other sequences, and their order, change no row.
func TestAttentionIgnoresItsNeighbours(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	dev := attnDevices(t, plainKind)[0]
	c := newAttnCase(rng, plainKind, 2, 2, 16, 0, 70, 5, 33, 128)
	want := c.train(dev)
	for _, order := range [][]int{{3, 1, 0, 2}, {2}, {0, 3}} {
		b := c.pack(order)
		dev.Attention(b.out, b.lse, b.q, kernels.KV{K: b.k, V: b.v}, b.layout, c.Attn)
		for i, s := range order {
			for r := range c.lengths[s] {
				if !sameBits(attnRow(b.out, b.layout.Spans[i].Row+r), attnRow(want.out, want.layout.Spans[s].Row+r)) {
					t.Fatalf("order %v: sequence %d position %d differs", order, s, r)
				}
			}
		}
	}
}

// With values so small that products underflow, the sign of a zero in a chain depends on the number of masked keys.
func TestAttentionZerosArePositive(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	c := newAttnCase(rng, plainKind, 2, 1, 16, 0, 90)
	for i := range c.v[0] {
		c.v[0][i] = -math.SmallestNonzeroFloat32 * float32(rng.IntN(3))
	}
	for _, dev := range attnDevices(t, c.attnKind) {
		b := c.train(dev)
		c.checkForward(t, b, 0)
		c.checkSame(t, dev.Name(), c.serve(dev, rng, 16, 30), b)
		for r := range b.layout.Rows() {
			for _, x := range attnRow(b.out, r) {
				if x == 0 && math.Signbit(float64(x)) {
					t.Fatalf("row %d holds -0", r)
				}
			}
		}
	}
}
