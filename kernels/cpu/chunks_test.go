package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// recBatch is the tensors of a packed batch of all sequences of a case.
type recBatch struct {
	q, k, v, g, b, skip, out kernels.Tensor
	layout                   *kernels.Layout
}

// rowsOf lays rows of sequences side by side: all of them in an order, or one piece of each.
func (c *recCase) rowsOf(pieces []kernels.Span, seqs []int) recBatch {
	l := &kernels.Layout{}
	var q, k, v, g, b []float32
	nq, nv, row := c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim, 0
	for i, p := range pieces {
		s, end := seqs[i], p.Pos+p.Rows
		q, k, v = append(q, c.q[s][p.Pos*nq:end*nq]...), append(k, c.k[s][p.Pos*nq:end*nq]...),
			append(v, c.v[s][p.Pos*nv:end*nv]...)
		g, b = append(g, c.g[s][p.Pos*c.Heads:end*c.Heads]...), append(b, c.b[s][p.Pos*c.Heads:end*c.Heads]...)
		p.Row = row
		row += p.Rows
		l.Spans = append(l.Spans, p)
	}
	l.Segments = []int32{0, int32(row)}
	second := kernels.F32
	if c.delta {
		second = c.dtype
	}
	return recBatch{
		q: attnTensor(c.dtype, q, row, nq, 5), k: attnTensor(c.dtype, k, row, nq, 3), v: attnTensor(c.dtype, v, row, nv,
			1), g: attnTensor(kernels.F32, g, row, c.Heads, 0),
		b: attnTensor(second, b, row, c.Heads, 2), skip: kernels.Wrap(c.skip, 1, c.Heads), out: attnTensor(c.dtype, nil,
			row, nv, 7), layout: l,
	}
}

func (c *recCase) pack(order []int) recBatch {
	var pieces []kernels.Span
	for _, s := range order {
		pieces = append(pieces, kernels.Span{Rows: c.lengths[s]})
	}
	return c.rowsOf(pieces, order)
}

func (c *recCase) run(dev *Device, b recBatch, s *kernels.ChunkState) recBatch {
	if c.delta {
		dev.DeltaRule(b.out, kernels.DeltaRuleOperands{Q: b.q, K: b.k, V: b.v, G: b.g, B: b.b}, s, b.layout,
			c.Recurrence)
	} else {
		dev.StateSpace(b.out, kernels.StateSpaceOperands{C: b.q, B: b.k, X: b.v, G: b.g, DT: b.b, Skip: b.skip}, s,
			b.layout, c.Recurrence)
	}
	return b
}

// serve runs the case in slots: steps of up to maxRows rows of some of the sequences, in any order. Slots hold NaN
// before their sequence begins.
func (c *recCase) serve(dev *Device, rng *rand.Rand, maxRows int) recBatch {
	all, slots := c.pack(ints(len(c.lengths))), rng.Perm(len(c.lengths)+1)
	s := kernels.NewChunkState(kernels.NewArena(dev), c.Recurrence, len(slots), dev.def.ChunkRows)
	for _, t := range []kernels.Tensor{s.S, s.K, s.N, s.C} {
		fill(t.F32s(), float32(math.NaN()))
	}
	done := make([]int, len(c.lengths))
	for left := all.layout.Rows(); left > 0; {
		var pieces []kernels.Span
		var seqs []int
		for _, i := range rng.Perm(len(c.lengths)) {
			n := min(1+rng.IntN(maxRows)*rng.IntN(2), c.lengths[i]-done[i])
			if n == 0 || rng.IntN(3) == 0 {
				continue
			}
			pieces, seqs = append(pieces, kernels.Span{Rows: n, Pos: done[i], Slot: slots[i]}), append(seqs, i)
			done[i] += n
			left -= n
		}
		step := c.rowsOf(pieces, seqs)
		c.run(dev, step, &s)
		for i, p := range step.layout.Spans {
			for r := range p.Rows {
				copyRow(all.out, all.layout.Spans[seqs[i]].Row+p.Pos+r, step.out, p.Row+r)
			}
		}
	}
	return all
}

func (c *recCase) checkSame(t *testing.T, what string, got, want kernels.Tensor) {
	t.Helper()
	for r := range want.Rows {
		if !sameBits(attnRow(got, r), attnRow(want, r)) {
			t.Fatalf("%v: %s: row %d differs", c, what, r)
		}
	}
}

var edgeLengths = []int{1, 63, 64, 65, 130}

func recCases(rng *rand.Rand, kind attnKind) []*recCase {
	var cases []*recCase
	for _, delta := range []bool{true, false} {
		cases = append(cases,
			newRecCase(rng, kind, delta, kernels.Recurrence{KeyHeads: 2, Heads: 4, KeyDim: 16, ValueDim: 12},
				edgeLengths...),
			newRecCase(rng, kind, delta, kernels.Recurrence{KeyHeads: 1, Heads: 3, KeyDim: 5, ValueDim: 40}, 2, 200, 1,
				3),
			newRecCase(rng, kind, delta, kernels.Recurrence{KeyHeads: 1, Heads: 1, KeyDim: 32, ValueDim: 32}, 129))
	}
	return cases
}

func TestRecurrenceEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for _, c := range recCases(rng, kind) {
			want := c.run(devs[0], c.pack(ints(len(c.lengths))), nil)
			for seq, span := range want.layout.Spans {
				for h := range c.Heads {
					rows, _ := c.chunks(seq, h)
					for i, row := range rows {
						got := attnRow(want.out, span.Row+i)[h*c.ValueDim:][:c.ValueDim]
						for d := range row {
							if row[d] = attnRound(c.dtype, row[d]); math.Float32bits(row[d]) !=
								math.Float32bits(got[d]) {
								t.Fatalf("%v: sequence %d position %d head %d value %d: %v, want %v", c, seq, i, h, d,
									got[d], row[d])
							}
						}
					}
				}
			}
			for _, dev := range devs[1:] {
				c.checkSame(t, dev.Name(), c.run(dev, c.pack(ints(len(c.lengths))), nil).out, want.out)
			}
		}
	}
}

// Any cut of a prefill and any mix with other sequences gives the bits of the packed batch, and each sequence those
// that it has alone.
func TestRecurrenceServesWhatItTrains(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for i, c := range recCases(rng, kind) {
			want := c.run(devs[0], c.pack(ints(len(c.lengths))), nil)
			c.checkSame(t, "in pieces", c.serve(devs[i%len(devs)], rng, 1+rng.IntN(90)).out, want.out)
			c.checkSame(t, "row by row", c.serve(devs[i%len(devs)], rng, 1).out, want.out)
			for s, span := range want.layout.Spans {
				c.checkSame(t, "alone", c.run(devs[i%len(devs)], c.pack([]int{s}), nil).out, want.out.RowRange(span.Row,
					span.Row+span.Rows))
			}
		}
	}
}

// The chunked rule is the plain recurrence, here in float64, up to rounding.
func TestRecurrenceIsTheRecurrence(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for _, c := range recCases(rng, plainKind) {
		got := c.run(attnDevices(t, plainKind)[0], c.pack(ints(len(c.lengths))), nil)
		for s, span := range got.layout.Spans {
			want := c.plain(c.inputs(s), c.lengths[s])
			for i := range want {
				g := got.out.F32s()[(span.Row+i/(c.Heads*c.ValueDim))*got.out.Stride+i%(c.Heads*c.ValueDim)]
				if math.Abs(float64(g)-want[i]) > 2e-5*max(1, math.Abs(want[i])) {
					t.Fatalf("%v: sequence %d element %d: %v, want %v", c, s, i, g, want[i])
				}
			}
		}
	}
}

// inputs is everything a sequence's output depends on, in float64: q, k, v, g, b and skip, one after another.
func (c *recCase) inputs(seq int) (x []float64) {
	for _, part := range [][]float32{c.q[seq], c.k[seq], c.v[seq], c.g[seq], c.b[seq], c.skip} {
		for _, v := range part {
			x = append(x, float64(v))
		}
	}
	return x
}

// plain is the recurrence token by token (the delta rule of arXiv 2412.06464, equation 10; Mamba2's of 2405.21060,
// equation 2): out [T, Heads*ValueDim].
func (c *recCase) plain(in []float64, rows int) []float64 {
	take := func(n int) []float64 {
		x := in[:n]
		in = in[n:]
		return x
	}
	nq, nv := c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim
	q, k, v, g, b, skip := take(rows*nq), take(rows*nq), take(rows*nv), take(rows*c.Heads), take(rows*c.Heads),
		take(c.Heads)
	out := make([]float64, rows*nv)
	for h := range c.Heads {
		s := make([]float64, c.KeyDim*c.ValueDim)
		for t := range rows {
			kh := h / (c.Heads / c.KeyHeads)
			qt, kt := q[t*nq+kh*c.KeyDim:][:c.KeyDim], k[t*nq+kh*c.KeyDim:][:c.KeyDim]
			vt, o := v[t*nv+h*c.ValueDim:][:c.ValueDim], out[t*nv+h*c.ValueDim:][:c.ValueDim]
			if c.delta {
				qt, kt = unit(qt, 1/math.Sqrt(float64(c.KeyDim))), unit(kt, 1)
			}
			for i := range s {
				s[i] *= math.Exp(g[t*c.Heads+h])
			}
			for d := range c.ValueDim {
				add := b[t*c.Heads+h] * vt[d]
				if c.delta {
					read := 0.0
					for e := range kt {
						read += s[e*c.ValueDim+d] * kt[e]
					}
					add = (vt[d] - read) / (1 + math.Exp(-b[t*c.Heads+h]))
				} else {
					o[d] = skip[h] * vt[d]
				}
				for e := range kt {
					s[e*c.ValueDim+d] += kt[e] * add
					o[d] += qt[e] * s[e*c.ValueDim+d]
				}
			}
		}
	}
	return out
}

func unit(x []float64, scale float64) []float64 {
	sum := 1e-6
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum) * scale
	}
	return y
}

func BenchmarkDeltaRule(b *testing.B) {
	rng := rand.New(rand.NewPCG(19, 20))
	dev, err := New(kernels.Default(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	c := newRecCase(rng, plainKind, true, kernels.Recurrence{KeyHeads: 2, Heads: 4, KeyDim: 128, ValueDim: 128}, 1024)
	batch, g := c.pack([]int{0}), c.newGrads([]int{0})
	b.Run("forward", func(b *testing.B) {
		for b.Loop() {
			c.run(dev, batch, nil)
		}
	})
	b.Run("backward", func(b *testing.B) {
		for b.Loop() {
			c.runBackward(dev, batch, g)
		}
	})
	for _, rows := range []int{1, 64} {
		s := kernels.NewChunkState(kernels.NewArena(dev), c.Recurrence, 1, dev.def.ChunkRows)
		step := c.rowsOf([]kernels.Span{{Rows: rows, Pos: 64}}, []int{0})
		b.Run(fmt.Sprintf("cached/%d", rows), func(b *testing.B) {
			for b.Loop() {
				c.run(dev, step, &s)
			}
		})
	}
}
