//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"lockstep/kernels"
)

// negative is decays.
func negative(rows, cols int) operand {
	o := normal(kernels.F32, rows, cols, 0.3)
	for i := 3; i < len(o.raw); i += 4 {
		o.raw[i] |= 0x80
	}
	return o
}

// packed is sequences from position 0, in two packs.
func packed(lengths ...int) *kernels.Layout {
	l := &kernels.Layout{}
	rows := 0
	for _, n := range lengths {
		l.Spans = append(l.Spans, kernels.Span{Row: rows, Rows: n})
		rows += n
	}
	l.Packs = []int32{0, int32(lengths[0]), int32(rows)}
	return l
}

// served is steps of at most so many rows of a sequence, which take sequences of those lengths to their ends, each in a
// slot of its own.
func served(most int, lengths ...int) (steps []*kernels.Layout) {
	done, left := make([]int, len(lengths)), len(lengths)
	for left > 0 {
		l, rows := &kernels.Layout{}, 0
		for _, i := range rng.Perm(len(lengths)) {
			n := min(1+rng.IntN(most), lengths[i]-done[i])
			if n == 0 || rng.IntN(4) == 0 {
				continue
			}
			l.Spans = append(l.Spans, kernels.Span{Row: rows, Rows: n, Pos: done[i], Slot: len(lengths) - i})
			rows += n
			if done[i] += n; done[i] == lengths[i] {
				left--
			}
		}
		if l.Packs = []int32{0, int32(rows)}; rows > 0 {
			steps = append(steps, l)
		}
	}
	return steps
}

// recurrence is a call's inputs for all rows of some steps, one step after the other.
type recurrence struct {
	kernels.Recurrence
	delta bool
	steps []*kernels.Layout
}

const (
	recQ = iota
	recK
	recV
	recG
	recB
	recSkip
	recOut
	recOthers
)

func (c *recurrence) operands(dtype kernels.DType) []operand {
	rows := 0
	for _, l := range c.steps {
		rows += l.Rows()
	}
	nq, nv := c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim
	b := strided(dtype, rows, c.Heads, 1)
	if !c.delta {
		b = positive(rows, c.Heads)
	}
	return []operand{strided(dtype, rows, nq, 1), normal(dtype, rows, nq, 1), strided(dtype, rows, nv, 1),
		negative(rows, c.Heads), b, normal(kernels.F32, 1, c.Heads, 1), strided(dtype, rows, nv, 1)}
}

func (c *recurrence) run(d kernels.Device, x []kernels.Tensor, s *kernels.ChunkState) {
	row := 0
	for _, l := range c.steps {
		at := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(row, row+l.Rows()) }
		if c.delta {
			d.(kernels.DeltaNet).DeltaRule(at(x[recOut]), at(x[recQ]), at(x[recK]), at(x[recV]), at(x[recG]),
				at(x[recB]), s, l, c.Recurrence)
		} else {
			d.(kernels.Mamba).StateSpace(at(x[recOut]), at(x[recQ]), at(x[recK]), at(x[recV]), at(x[recG]), at(x[recB]),
				x[recSkip], s, l, c.Recurrence)
		}
		row += l.Rows()
	}
}

var recurrences = []kernels.Recurrence{
	{KeyHeads: 2, Heads: 4, KeyDim: 16, ValueDim: 32}, {KeyHeads: 1, Heads: 3, KeyDim: 32, ValueDim: 16},
	{KeyHeads: 1, Heads: 1, KeyDim: 64, ValueDim: 64},
	{KeyHeads: 1, Heads: 2, KeyDim: 128, ValueDim: 128}, {KeyHeads: 1, Heads: 2, KeyDim: 128, ValueDim: 64},
	{KeyHeads: 2, Heads: 2, KeyDim: 5, ValueDim: 70},
}

func eachRecurrence(run func(name string, dtype kernels.DType, c *recurrence)) {
	for i, r := range recurrences {
		for _, delta := range []bool{true, false} {
			dtype := dtypes[(i+1)%2]
			run(fmt.Sprintf("%s %+v delta %v", dtype, r, delta), dtype, &recurrence{Recurrence: r, delta: delta})
		}
	}
}

// Sequences of every kind of length in one batch, forward and backward.
func TestRecurrence(t *testing.T) {
	eachRecurrence(func(name string, dtype kernels.DType, c *recurrence) {
		l := packed(1, 63, 64, 65, 130, 2)
		c.steps = []*kernels.Layout{l}
		rows, nq, nv := l.Rows(), c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim
		db := strided(dtype, rows, c.Heads, 1)
		if !c.delta {
			db = normal(kernels.F32, rows, c.Heads, 1)
		}
		x := append(c.operands(dtype), strided(dtype, rows, nq, 1), strided(dtype, rows, nq, 1),
			normal(dtype, rows, nv, 1), strided(kernels.F32, rows, c.Heads, 1), db, normal(kernels.F32, 1, c.Heads, 1),
			strided(dtype, rows, nv, 1))
		both(t, name, x, func(d kernels.Device, x []kernels.Tensor) {
			c.run(d, x, nil)
			dq, dk, dv, dg, db, dskip, dout := x[recOthers], x[recOthers+1], x[recOthers+2], x[recOthers+3],
				x[recOthers+4], x[recOthers+5], x[recOthers+6]
			if c.delta {
				d.(kernels.DeltaNet).DeltaRuleBackward(dq, dk, dv, dg, db, dout, x[recQ], x[recK], x[recV], x[recG],
					x[recB], l, c.Recurrence)
			} else {
				d.(kernels.Mamba).StateSpaceBackward(dq, dk, dv, dg, db, dskip, dout, x[recQ], x[recK], x[recV],
					x[recG], x[recB], x[recSkip], l, c.Recurrence)
			}
		})
	})
}

// Sequences in slots that hold NaN before they begin, in pieces of any size and row by row: outputs and the states left
// behind.
func TestRecurrenceCached(t *testing.T) {
	for _, most := range []int{1, 40, 150} {
		eachRecurrence(func(name string, dtype kernels.DType, c *recurrence) {
			lengths := []int{1, 63, 64, 65, 130}
			if most == 1 {
				lengths = []int{3, 66}
			}
			c.steps = served(most, lengths...)
			slots := len(lengths) + 1
			states := normal(kernels.F32, slots*c.Heads*c.KeyDim, c.ValueDim, 1)
			both(t, fmt.Sprintf("%s in steps of up to %d rows", name, most), append(c.operands(dtype), states),
				func(d kernels.Device, x []kernels.Tensor) {
					mem := kernels.NewArena(d)
					s := kernels.NewChunkState(mem, c.Recurrence, slots, kernels.Default().ChunkRows)
					for _, part := range []kernels.Tensor{s.S, s.K, s.N, s.C} {
						d.Write(part, nans(part))
					}
					c.run(d, x, &s)
					d.Copy(x[recOthers], s.S.Reshape(x[recOthers].Rows, c.ValueDim))
				})
		})
	}
}

// nans is what an F32 tensor holds where no element is a number.
func nans(t kernels.Tensor) []byte {
	raw := make([]byte, t.Bytes())
	for i := 0; i < len(raw); i += 4 {
		binary.LittleEndian.PutUint32(raw[i:], 0x7fc00000)
	}
	return raw
}

// What model.Build asks before it uses a shape.
func TestRecurs(t *testing.T) {
	for _, r := range recurrences {
		for _, delta := range []bool{true, false} {
			if err := card.(*Device).Recurs(r, delta); err != nil {
				t.Errorf("%+v: %v", r, err)
			}
		}
	}
	if err := card.(*Device).Recurs(kernels.Recurrence{KeyHeads: 1, Heads: 1, KeyDim: mostKeyDim + 1, ValueDim: 8},
		true); err == nil {
		t.Error("keys are wider than a block's memory")
	}
}

func TestShortConv(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 2}, {100, 4}, {384, 4}, {513, 12}} {
			n, taps := s[0], s[1]
			for _, biased := range []bool{true, false} {
				bias := func(x kernels.Tensor) kernels.Tensor {
					if !biased {
						return kernels.Tensor{}
					}
					return x
				}
				l := packed(1, 2, 63, 64, 65, 130)
				rows := l.Rows()
				both(t, fmt.Sprintf("short convolution %d x %d, bias %v", n, taps, biased),
					[]operand{strided(dtype, rows, n, 1), strided(dtype, rows, n, 1), normal(dtype, n, taps, 1),
						normal(dtype, 1, n, 1),
						strided(dtype, rows, n, 1), normal(kernels.F32, n, taps, 1), normal(kernels.F32, 1, n, 1),
						normal(dtype, rows, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						d.(kernels.Recurrent).ShortConv(x[0], x[1], x[2], bias(x[3]), kernels.Tensor{}, l)
						d.(kernels.Recurrent).ShortConvBackward(x[4], x[5], bias(x[6]), x[7], x[1], x[2], bias(x[3]), l)
					})
				steps := served(5, 1, 2, 9, 30)
				rows = 0
				for _, l := range steps {
					rows += l.Rows()
				}
				both(t, fmt.Sprintf("cached short convolution %d x %d, bias %v", n, taps, biased),
					[]operand{strided(dtype, rows, n, 1), strided(dtype, rows, n, 1), normal(dtype, n, taps, 1),
						normal(dtype, 1, n, 1),
						grouped(dtype, 5, taps-1, n, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						row := 0
						for _, l := range steps {
							end := row + l.Rows()
							d.(kernels.Recurrent).ShortConv(x[0].RowRange(row, end), x[1].RowRange(row, end), x[2],
								bias(x[3]), x[4], l)
							row = end
						}
					})
			}
		}
	}
}

func TestDecay(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {77, 3}, {500, 64}} {
			r, h := s[0], s[1]
			packs := []int32{0, int32(r / 3), int32(r)}
			for _, hi := range []float32{1.5, float32(math.Inf(1))} {
				both(t, fmt.Sprint("decay ", s, hi), []operand{strided(kernels.F32, r, h, 1),
					normal(kernels.F32, r, h, 1), strided(dtype, r, h, 3), normal(kernels.F32, 1, h, 1),
					normal(kernels.F32, 1, h, 1),
					normal(dtype, r, h, 1), normal(kernels.F32, 1, h, 1), normal(kernels.F32, 1, h, 1),
					normal(kernels.F32, r, h, 1), strided(kernels.F32, r, h, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						n, dstep := d.(kernels.Recurrent), x[9]
						n.Decay(x[0], x[1], x[2], x[3], x[4], 0.1, hi)
						if hi > 2 {
							dstep = kernels.Tensor{}
						}
						n.DecayBackward(x[5], x[6], x[7], x[8], dstep, x[0], x[2], x[3], x[4], 0.1, hi, packs)
						n.DecayBackward(x[5], kernels.Tensor{}, kernels.Tensor{}, x[8], dstep, x[0], x[2], x[3], x[4],
							0.1, hi, packs)
					})
			}
		}
	}
}

func TestGatedNorms(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][3]int{{1, 1, 8}, {130, 3, 20}, {70, 4, 128}, {66, 40, 40}, {66, 2, 250}, {66, 2, 600}} {
			r, heads, n := s[0], s[1], s[2]
			packs := []int32{0, int32(r / 3), int32(r)}
			x := []operand{normal(dtype, r, heads*n, 1), strided(kernels.F32, r, heads, 1), strided(dtype, r, heads*n,
				1), strided(dtype, r, heads*n, 3), strided(dtype, r, heads*n, 1),
				normal(dtype, r, heads*n, 1), strided(dtype, r, heads*n, 1)}
			if n <= 256 { // as they are written
				both(t, fmt.Sprint("norm then gate ", s), append(x, normal(kernels.F32, 1, n, 1),
					normal(kernels.F32, 1, n, 1)), func(d kernels.Device, x []kernels.Tensor) {
					g := d.(kernels.DeltaNet)
					g.NormThenGate(x[0], x[1], x[2], x[3], x[7], 1e-6)
					g.NormThenGateBackward(x[4], x[5], x[8], x[6], x[2], x[3], x[1], x[7], packs)
					g.NormThenGateBackward(x[6], x[5], kernels.Tensor{}, x[4], x[2], x[3], x[1], x[7], packs)
				})
			}
			both(t, fmt.Sprint("gate then norm ", s), append(x, normal(dtype, 1, heads*n, 1),
				normal(kernels.F32, 1, heads*n, 1)), func(d kernels.Device, x []kernels.Tensor) {
				g := d.(kernels.Mamba)
				g.GateThenNorm(x[0], x[1], x[2], x[3], x[7], heads, 1e-5)
				g.GateThenNormBackward(x[4], x[5], x[8], x[6], x[2], x[3], x[1], x[7], heads, packs)
				g.GateThenNormBackward(x[6], x[5], kernels.Tensor{}, x[4], x[2], x[3], x[1], x[7], heads, packs)
			})
		}
	}
}

func TestSigmoidGate(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {500, 768}} {
			for _, one := range []bool{true, false} {
				r, n, gates := s[0], s[1], s[1]
				if one {
					gates = 1
				}
				both(t, fmt.Sprint("sigmoid gate ", s, one), []operand{strided(dtype, r, n, 1), normal(dtype, r, n, 1),
					strided(dtype, r, gates, 4), normal(dtype, r, gates, 1), normal(dtype, r, n, 1)},
					func(d kernels.Device, x []kernels.Tensor) {
						g := d.(kernels.DeltaNet)
						g.SigmoidGate(x[0], x[1], x[2])
						g.SigmoidGateBackward(x[4], x[3], x[4], x[1], x[2])
						g.SigmoidGate(x[1], x[1], x[2])
					})
			}
		}
	}
}

func TestReLU2(t *testing.T) {
	for _, dtype := range dtypes {
		for _, s := range [][2]int{{1, 1}, {33, 77}, {1000, 768}} {
			both(t, "relu2", []operand{strided(dtype, s[0], s[1], 1), strided(dtype, s[0], s[1], 3),
				normal(dtype, s[0], s[1], 1)}, func(d kernels.Device, x []kernels.Tensor) {
				m := d.(kernels.Mamba)
				m.ReLU2(x[0], x[1])
				m.ReLU2Backward(x[1], x[2], x[1])
			})
		}
	}
}
