//go:build cuda

package recurrent

import (
	"encoding/binary"
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// negative is decays.
func negative(rows, cols int) cudatest.Operand {
	o := cudatest.Normal(kernels.F32, rows, cols, 0.3)
	for i := 3; i < len(o.Raw); i += 4 {
		o.Raw[i] |= 0x80
	}
	return o
}

// packed is sequences from position 0 in two packs, whose segments of 50 rows end inside sequences.
func packed(lengths ...int) *kernels.Layout {
	l := &kernels.Layout{}
	rows := 0
	for _, n := range lengths {
		l.Spans = append(l.Spans, kernels.Span{Row: rows, Rows: n})
		rows += n
	}
	l.Segments = kernels.CutSegments([]int32{0, int32(lengths[0]), int32(rows)}, 50)
	return l
}

// part is the sequences of l whose rows are those of p, which ends with one.
func part(l *kernels.Layout, p cudatest.Part, segments []int32) *kernels.Layout {
	own := &kernels.Layout{Segments: segments}
	for _, s := range l.Spans {
		if s.Row >= p.From && s.Row < p.To {
			s.Row -= p.From
			own.Spans = append(own.Spans, s)
		}
	}
	return own
}

// served is steps of at most so many rows of a sequence, which take sequences of those lengths to their ends, each in a
// slot of its own.
func served(most int, lengths ...int) (steps []*kernels.Layout) {
	done, left := make([]int, len(lengths)), len(lengths)
	for left > 0 {
		l, rows := &kernels.Layout{}, 0
		for _, i := range cudatest.Rand.Perm(len(lengths)) {
			n := min(1+cudatest.Rand.IntN(most), lengths[i]-done[i])
			if n == 0 || cudatest.Rand.IntN(4) == 0 {
				continue
			}
			l.Spans = append(l.Spans, kernels.Span{Row: rows, Rows: n, Pos: done[i], Slot: len(lengths) - i})
			rows += n
			if done[i] += n; done[i] == lengths[i] {
				left--
			}
		}
		if l.Segments = []int32{0, int32(rows)}; rows > 0 {
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

func (c *recurrence) operands(dtype kernels.DType) []cudatest.Operand {
	rows := 0
	for _, l := range c.steps {
		rows += l.Rows()
	}
	nq, nv := c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim
	b := cudatest.Strided(dtype, rows, c.Heads, 1)
	if !c.delta {
		b = cudatest.Positive(rows, c.Heads)
	}
	return []cudatest.Operand{cudatest.Strided(dtype, rows, nq, 1), cudatest.Normal(dtype, rows, nq, 1),
		cudatest.Strided(dtype, rows, nv, 1),
		negative(rows, c.Heads), b, cudatest.Normal(kernels.F32, 1, c.Heads, 1), cudatest.Strided(dtype, rows, nv, 1)}
}

func (c *recurrence) run(d kernels.Device, x []kernels.Tensor, s *kernels.ChunkState) {
	row := 0
	for _, l := range c.steps {
		at := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(row, row+l.Rows()) }
		if c.delta {
			d.(kernels.DeltaNet).DeltaRule(at(x[recOut]), kernels.DeltaRuleOperands{Q: at(x[recQ]), K: at(x[recK]),
				V: at(x[recV]), G: at(x[recG]), B: at(x[recB])}, s, l, c.Recurrence)
		} else {
			d.(kernels.Mamba).StateSpace(at(x[recOut]), kernels.StateSpaceOperands{C: at(x[recQ]), B: at(x[recK]),
				X: at(x[recV]), G: at(x[recG]), DT: at(x[recB]), Skip: x[recSkip]}, s, l, c.Recurrence)
		}
		row += l.Rows()
	}
}

var recurrences = []kernels.Recurrence{
	{KeyHeads: 2, Heads: 4, KeyDim: 16, ValueDim: 32}, {KeyHeads: 1, Heads: 3, KeyDim: 32, ValueDim: 16},
	{KeyHeads: 1, Heads: 1, KeyDim: 64, ValueDim: 64},
	{KeyHeads: 1, Heads: 2, KeyDim: 128, ValueDim: 128}, {KeyHeads: 1, Heads: 2, KeyDim: 128, ValueDim: 64},
	{KeyHeads: 2, Heads: 2, KeyDim: 5, ValueDim: 70}, {KeyHeads: 1, Heads: 2, KeyDim: 252, ValueDim: 32},
}

func eachRecurrence(run func(name string, dtype kernels.DType, c *recurrence)) {
	for i, r := range recurrences {
		for _, delta := range []bool{true, false} {
			dtype := cudatest.DTypes[(i+1)%2]
			run(fmt.Sprintf("%s %+v delta %v", dtype, r, delta), dtype, &recurrence{Recurrence: r, delta: delta})
		}
	}
}

// Sequences of every kind of length in one batch, forward and backward.
func TestRecurrence(t *testing.T) {
	eachRecurrence(func(name string, dtype kernels.DType, c *recurrence) {
		c.trains(t, name, dtype, packed(1, 63, 64, 65, 130, 2))
	})
}

// trains compares forward and backward of a packed batch.
func (c *recurrence) trains(t *testing.T, name string, dtype kernels.DType, l *kernels.Layout) {
	t.Helper()
	c.steps = []*kernels.Layout{l}
	rows, nq, nv := l.Rows(), c.KeyHeads*c.KeyDim, c.Heads*c.ValueDim
	db := cudatest.Strided(dtype, rows, c.Heads, 1)
	if !c.delta {
		db = cudatest.Normal(kernels.F32, rows, c.Heads, 1)
	}
	x := append(c.operands(dtype), cudatest.Strided(dtype, rows, nq, 1), cudatest.Strided(dtype, rows, nq, 1),
		cudatest.Normal(dtype, rows, nv, 1), cudatest.Strided(kernels.F32, rows, c.Heads, 1), db,
		cudatest.Normal(kernels.F32, 1, c.Heads, 1), cudatest.Strided(dtype, rows, nv, 1))
	cudatest.Both(t, name, x, func(d kernels.Device, x []kernels.Tensor) {
		c.run(d, x, nil)
		c.backward(d, x, l)
	})
}

// The bits do not depend on how many values a block of a scan has: 64, 32 and 16, on so many multiprocessors that the
// host takes them, nor on whether teams scan, as they do long sequences and not short ones, forward and backward, of
// sequences that end in the middle of a chunk, and from slots. Backward has both sequences in one part.
func TestRecurrenceValues(t *testing.T) {
	d := cudatest.GPU
	defer func(processors int) { d.Processors = processors }(d.Processors)
	lengths := []int{129, 130}
	eachRecurrence(func(name string, dtype kernels.DType, c *recurrence) {
		for _, values := range []int{64, 32, 16} {
			d.Processors = len(lengths) * c.Heads * driver.Blocks(c.ValueDim, values)
			name := fmt.Sprintf("%s, %d values a block", name, values)
			c.trains(t, name, dtype, packed(lengths...))
			c.trains(t, name+", short", dtype, packed(60, 3))
			c.serves(t, name, dtype, 130, lengths...)
		}
	})
}

// backward is that of the inputs, whose gradients follow them in x, and then that of the output.
func (c *recurrence) backward(d kernels.Device, x []kernels.Tensor, l *kernels.Layout) {
	dx, dout := x[recOthers:], x[recOthers+6]
	if c.delta {
		d.(kernels.DeltaNet).DeltaRuleBackward(kernels.DeltaRuleOperands{Q: dx[0], K: dx[1], V: dx[2], G: dx[3],
			B: dx[4]}, dout, kernels.DeltaRuleOperands{Q: x[recQ], K: x[recK], V: x[recV], G: x[recG], B: x[recB]}, l,
			c.Recurrence)
		return
	}
	d.(kernels.Mamba).StateSpaceBackward(kernels.StateSpaceOperands{C: dx[0], B: dx[1], X: dx[2], G: dx[3], DT: dx[4],
		Skip: dx[5]}, dout, kernels.StateSpaceOperands{C: x[recQ], B: x[recK], X: x[recV], G: x[recG], DT: x[recB],
		Skip: x[recSkip]}, l, c.Recurrence)
}

// A backward of many short sequences takes the workspace of one long one, which is what a plan has.
func TestRecurrenceWorkspace(t *testing.T) {
	const rows = 4096
	for _, delta := range []bool{true, false} {
		c := recurrence{delta: delta,
			Recurrence: kernels.Recurrence{KeyHeads: 16, Heads: 64, KeyDim: 128, ValueDim: 128}}
		takes := func(length int) int {
			d := cudatest.Card.(kernels.Planner).Meta()
			mem, x := kernels.NewArena(d), []kernels.Tensor(nil)
			for range 2 {
				wide := func(cols int) kernels.Tensor { return mem.New(kernels.BF16, rows, cols) }
				heads := func(n int) kernels.Tensor { return mem.New(kernels.F32, n, c.Heads) }
				x = append(x, wide(c.KeyHeads*c.KeyDim), wide(c.KeyHeads*c.KeyDim), wide(c.Heads*c.ValueDim),
					heads(rows), heads(rows), heads(1), wide(c.Heads*c.ValueDim))
			}
			l := &kernels.Layout{Segments: []int32{0, rows}}
			for at := 0; at < rows; at += length {
				l.Spans = append(l.Spans, kernels.Span{Row: at, Rows: min(length, rows-at)})
			}
			c.backward(d, x, l)
			return kernels.Workspace(d)
		}
		one, large, small := takes(rows), takes(100), takes(2)
		if large != one || small != one || one <= kernels.Workspace(cudatest.Card) {
			t.Errorf("delta rule %t: one sequence takes %d bytes, of 100 rows each %d, of 2 %d", delta, one, large,
				small)
		}
	}
}

// The gradient of a state space's skip, of one segment and of several.
func TestSkipSegments(t *testing.T) {
	r, l := kernels.Recurrence{KeyHeads: 1, Heads: 3, KeyDim: 16, ValueDim: 16}, packed(1, 5, 60, 64, 40)
	rows, nq, nv := l.Rows(), r.KeyHeads*r.KeyDim, r.Heads*r.ValueDim
	batch := func(cols int) cudatest.Operand { return cudatest.Normal(kernels.BF16, rows, cols, 1) }
	f32 := func() cudatest.Operand { return cudatest.Normal(kernels.F32, rows, r.Heads, 1) }
	x := []cudatest.Operand{batch(nq), batch(nq), batch(nv), negative(rows, r.Heads), cudatest.Positive(rows, r.Heads),
		cudatest.Normal(kernels.F32, 1, r.Heads, 1), batch(nq), batch(nq), batch(nv), f32(), f32(),
		cudatest.Normal(kernels.F32, 1, r.Heads, 1), batch(nv)}
	for _, segments := range [][]int32{{0, 170}, {0, 1, 130, 170}, {0, 6, 66, 66, 170}} {
		cudatest.BySegment(t, "state space backward", x, segments, func(d kernels.Device, x []kernels.Tensor,
			p cudatest.Part, segments []int32) {
			operands := func(x []kernels.Tensor) kernels.StateSpaceOperands {
				return kernels.StateSpaceOperands{C: p.Rows(x[0]), B: p.Rows(x[1]), X: p.Rows(x[2]), G: p.Rows(x[3]),
					DT: p.Rows(x[4]), Skip: x[5]}
			}
			d.(kernels.Mamba).StateSpaceBackward(operands(x[6:]), p.Rows(x[12]), operands(x), part(l, p, segments), r)
		})
	}
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
			c.serves(t, name, dtype, most, lengths...)
		})
	}
}

// serves compares the outputs and states of sequences in slots, in steps of at most so many rows.
func (c *recurrence) serves(t *testing.T, name string, dtype kernels.DType, most int, lengths ...int) {
	t.Helper()
	c.steps = served(most, lengths...)
	slots := len(lengths) + 1
	states := cudatest.Normal(kernels.F32, slots*c.Heads*c.KeyDim, c.ValueDim, 1)
	cudatest.Both(t, fmt.Sprintf("%s in steps of up to %d rows", name, most), append(c.operands(dtype), states),
		func(d kernels.Device, x []kernels.Tensor) {
			mem := kernels.NewArena(d)
			s := kernels.NewChunkState(mem, c.Recurrence, slots, kernels.Default().ChunkRows)
			for _, part := range []kernels.Tensor{s.S, s.K, s.N, s.C} {
				d.Write(part, nans(part))
			}
			c.run(d, x, &s)
			d.Copy(x[recOthers], s.S.Reshape(x[recOthers].Rows, c.ValueDim))
		})
}

// nans is what an F32 tensor holds where no element is a number.
func nans(t kernels.Tensor) []byte {
	raw := make([]byte, t.Bytes())
	for i := 0; i < len(raw); i += 4 {
		binary.LittleEndian.PutUint32(raw[i:], 0x7fc00000)
	}
	return raw
}
