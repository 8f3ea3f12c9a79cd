//go:build cuda

package bench

import (
	"fmt"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
)

// RecurrentCase is a layer's delta rule on sequences of Rows rows each.
type RecurrentCase struct {
	kernels.Recurrence
	Sequences, Rows int
}

// RecurrentCases are the shape of Qwen3.5-35B-A3B on a sequence of 131,072 rows, whole and with the heads of one of two
// ranks, and on as many rows of short sequences.
var RecurrentCases = []RecurrentCase{
	{Recurrence: kernels.Recurrence{KeyHeads: 16, Heads: 32, KeyDim: 128, ValueDim: 128}, Sequences: 1, Rows: 131072},
	{Recurrence: kernels.Recurrence{KeyHeads: 8, Heads: 16, KeyDim: 128, ValueDim: 128}, Sequences: 1, Rows: 131072},
	{Recurrence: kernels.Recurrence{KeyHeads: 16, Heads: 32, KeyDim: 128, ValueDim: 128}, Sequences: 64, Rows: 1024},
}

// Recurrent times forward and backward, about `each` for every line. No tensor core computes: the bytes are those of
// the operands, which bound nothing.
func Recurrent(d *cuda.Device, each time.Duration, cases []RecurrentCase) (results []Result) {
	for _, c := range cases {
		keep := d.Held()
		results = append(results, c.time(d, each)...)
		d.Release(keep)
	}
	return results
}

func (c RecurrentCase) time(d *cuda.Device, each time.Duration) []Result {
	mem, rows := kernels.NewArena(d), c.Sequences*c.Rows
	operands := func() kernels.DeltaRuleOperands {
		return kernels.DeltaRuleOperands{Q: RandomRows(d, mem, rows, c.KeyHeads*c.KeyDim),
			K: RandomRows(d, mem, rows, c.KeyHeads*c.KeyDim), V: RandomRows(d, mem, rows, c.Heads*c.ValueDim),
			G: mem.Zeros(kernels.F32, rows, c.Heads), B: RandomRows(d, mem, rows, c.Heads)}
	}
	x, dx, out := operands(), operands(), RandomRows(d, mem, rows, c.Heads*c.ValueDim)
	dout := RandomRows(d, mem, rows, c.Heads*c.ValueDim)
	l := &kernels.Layout{Segments: []int32{0, int32(rows)}}
	bytes := out.Bytes()
	for _, t := range []kernels.Tensor{x.Q, x.K, x.V, x.G, x.B} {
		bytes += t.Bytes()
	}
	for i := range c.Sequences {
		l.Spans = append(l.Spans, kernels.Span{Row: i * c.Rows, Rows: c.Rows})
	}
	name := fmt.Sprintf("delta rule, %d heads of %d and %d, %d x %d rows", c.Heads, c.KeyDim, c.ValueDim, c.Sequences,
		c.Rows)
	return []Result{
		{Case: name, Bytes: float64(bytes), Seconds: Time(d, each, func() {
			d.DeltaRule(out, x, nil, l, c.Recurrence)
		})},
		{Case: name + ", backward", Bytes: float64(2 * bytes), Seconds: Time(d, each, func() {
			d.DeltaRuleBackward(dx, dout, x, l, c.Recurrence)
		})},
	}
}
