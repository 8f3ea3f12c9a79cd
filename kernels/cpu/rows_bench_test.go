package cpu

import (
	"fmt"
	"testing"
	"time"

	"lockstep/kernels"
)

// rowBench is an operation on a batch of rows and the bytes that it must read and write.
type rowBench struct {
	name  string
	bytes int
	run   func()
}

// benchRows is the size of a training step of a small model: rows, columns, experts of a token.
const (
	benchT, benchH, benchHeads, benchD, benchK = 4096, 512, 8, 64, 4
)

func rowBenches(d *Device, dtype kernels.DType) []rowBench {
	c := rowCase{seed: 1, dtype: dtype}
	c.start()
	t, h, s := benchT, benchH, dtype.Size()
	x, y, z, w := c.weight(t, h), c.weight(t, h), c.weight(t, h), c.weight(1, h)
	gu, dgu := c.weight(t, 2*h), c.weight(t, 2*h)
	rstd, dw, rstdHeads := c.f32(1, t), c.f32(1, h), c.f32(t, benchHeads)
	headW, headDW, rope, positions := c.weight(1, benchD), c.f32(1, benchD), c.rope(t, benchD, benchD/2), c.ints(t, t)
	ids, table, tableGrad := c.ints(t, 512), c.weight(512, h), c.f32(512, h)
	wide, weights, dweights, rowOf := c.weight(t*benchK, h), c.f32(t, benchK), c.f32(t, benchK), c.rowsOf(t, benchK)
	dwide := c.weight(t*benchK, h)
	master, m, v, grad := c.f32(1, t*h), c.f32(1, t*h), c.f32(1, t*h), c.f32(1, t*h)
	for i, g := range v.F32s() {
		v.F32s()[i] = g * g
	}
	stored, sum := master, c.f32(1, 1)
	if dtype == kernels.BF16 {
		stored = c.weight(1, t*h)
	}
	logits, probs, ids := c.f32(t, 64), c.f32(t, 64), rowTensor(kernels.I32, t, benchK)
	row := t * h * s
	return []rowBench{
		{"Copy", 2 * row, func() { d.Copy(y, x) }},
		{"Zero", row, func() { d.Zero(y) }},
		{"Add", 3 * row, func() { d.Add(z, x, y) }},
		{"Scale", 2 * row, func() { d.Scale(z, x, 0.5) }},
		{"Embed", 2 * row, func() { d.Embed(y, table, ids) }},
		{"EmbedBackward", row + 8*t*h, func() { d.EmbedBackward(tableGrad, x, ids, oneSegment(x)) }},
		{"RMSNorm", 2 * row, func() { d.RMSNorm(z, rstd, x, w, kernels.Norm{Eps: 1e-6}) }},
		{"RMSNormBackward", 4 * row, func() {
			d.RMSNormBackward(z, kernels.Tensor{}, y, x, rstd, w, kernels.Norm{}, oneSegment(z))
		}},
		{"RMSNormBackward with dw", 6 * row, func() {
			d.RMSNormBackward(z, dw, y, x, rstd, w, kernels.Norm{}, oneSegment(z))
		}},
		{"HeadNormRope", 2 * row, func() {
			d.HeadNormRope(z, rstdHeads, x, headW, positions, rope, kernels.Norm{Eps: 1e-6})
		}},
		{"HeadNormRopeBackward", 3 * row, func() {
			d.HeadNormRopeBackward(z, kernels.Tensor{}, y, x, rstdHeads, headW, positions, rope, kernels.Norm{},
				oneSegment(z))
		}},
		{"HeadNormRopeBackward with dw", 5 * row, func() {
			d.HeadNormRopeBackward(z, headDW, y, x, rstdHeads, headW, positions, rope, kernels.Norm{}, oneSegment(z))
		}},
		{"SwiGLU", 3 * row, func() { d.SwiGLU(y, gu) }},
		{"SwiGLUBackward", 5 * row, func() { d.SwiGLUBackward(dgu, y, gu) }},
		{"Route", 2 * 4 * t * 64, func() {
			d.Route(weights, ids, probs, logits, kernels.Router{Norm: true, Scale: 1})
		}},
		{"Combine", (benchK + 1) * row, func() { d.Combine(y, kernels.Tensor{}, wide, weights, rowOf) }},
		{"CombineBackward", (2*benchK + 1) * row, func() {
			d.CombineBackward(dwide, dweights, y, wide, weights, rowOf, kernels.AllRows)
		}},
		{"SumSquares", 4 * t * h, func() { d.SumSquares(sum, master) }},
		{"AdamW", 8*4*t*h + map[bool]int{true: t * h * 2}[dtype == kernels.BF16], func() {
			d.AdamW(stored, master, m, v, grad, half(), adamwSettings)
		}},
	}
}

// BenchmarkRows reports GB/s of what each operation must move, and the ratio to Copy timed just before and after.
func BenchmarkRows(b *testing.B) {
	for _, isa := range rowSets() {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			d := newRowDevice(b, isa, 0)
			all := rowBenches(d, dtype)
			for _, op := range all {
				b.Run(fmt.Sprintf("%s/%s/%s", isa, dtype, op.name), func(b *testing.B) {
					before := copyRate(all[0])
					for b.Loop() {
						op.run()
					}
					rate := float64(op.bytes) * float64(b.N) / b.Elapsed().Seconds()
					b.ReportMetric(rate/1e9, "GB/s")
					b.ReportMetric(2*rate/(before+copyRate(all[0])), "of-copy")
				})
			}
		}
	}
}

// copyRate is the bytes a second of the best of a few copies.
func copyRate(op rowBench) float64 {
	best := time.Hour
	for range 10 {
		start := time.Now()
		op.run()
		best = min(best, time.Since(start))
	}
	return float64(op.bytes) / best.Seconds()
}
