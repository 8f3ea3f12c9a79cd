//go:build cuda

package bench

import (
	"encoding/binary"
	"fmt"
	"time"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/quant"
)

// Sizes of the benchmark of operations that memory bounds: each moves more than a cache holds.
const (
	rowsTokens  = 16384
	rowsHidden  = 2048
	rowsHeads   = 32
	rowsHeadDim = 128
	rowsExperts = 128
	rowsTopK    = 8
	rowsExpert  = 768
	rowsVocab   = 32000
	rowsLogits  = 4096
	rowsWeights = 1 << 28
)

// RowsCase is an operation, and the elements that it has to read and write.
type RowsCase struct {
	Name  string
	Moved []kernels.Tensor // whole tensors, as often as they are read or written
	Run   func()
}

// Rows times the operations that memory bounds, about `each` for every one, on bf16 rows.
func Rows(d *cuda.Device, each time.Duration) (results []Result) {
	for _, cases := range []func(d *cuda.Device, mem *kernels.Arena) []RowsCase{Hidden, Heads, mixture,
		logits, optimizer, fakeQuantize, quantize, drawn} {
		keep := d.Held()
		for _, c := range cases(d, kernels.NewArena(d)) {
			bytes := 0
			for _, t := range c.Moved {
				bytes += t.Bytes()
			}
			results = append(results, Result{Case: c.Name, Seconds: Time(d, each, c.Run), Bytes: float64(bytes)})
		}
		d.Release(keep)
	}
	return results
}

// RandomRows is a tensor bf16 [rows, cols] of normal values.
func RandomRows(d *cuda.Device, mem *kernels.Arena, rows, cols int) kernels.Tensor {
	t := mem.New(kernels.BF16, rows, cols)
	FillRandom(d, t)
	return t
}

// Hidden are operations on rows of a hidden size.
func Hidden(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	x, y, z, w := RandomRows(d, mem, rowsTokens, rowsHidden), RandomRows(d, mem, rowsTokens, rowsHidden),
		RandomRows(d, mem, rowsTokens, rowsHidden), RandomRows(d, mem, 1, rowsHidden)
	rstd, dw := mem.Zeros(kernels.F32, 1, rowsTokens), mem.Zeros(kernels.F32, 1, rowsHidden)
	size := fmt.Sprintf(", %d x %d", rowsTokens, rowsHidden)
	return []RowsCase{
		{"add" + size, []kernels.Tensor{x, y, z}, func() { d.Add(z, x, y) }},
		{"RMSNorm" + size, []kernels.Tensor{x, y}, func() { d.RMSNorm(y, rstd, x, w, kernels.Norm{Eps: 1e-6}) }},
		{"RMSNorm backward, weights too" + size, []kernels.Tensor{x, y, z, z}, func() {
			d.RMSNormBackward(z, dw, y, x, rstd, w, kernels.Norm{}, []int32{0, rowsTokens})
		}},
	}
}

// Heads are operations on heads of rows.
func Heads(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	const width = rowsHeads * rowsHeadDim
	x, y, z, w := RandomRows(d, mem, rowsTokens, width), RandomRows(d, mem, rowsTokens, width),
		RandomRows(d, mem, rowsTokens, width), RandomRows(d, mem, 1, rowsHeadDim)
	rstd, dw, at := mem.Zeros(kernels.F32, rowsTokens, rowsHeads), mem.Zeros(kernels.F32, 1, rowsHeadDim),
		mem.Zeros(kernels.I32, 1, rowsTokens)
	rope := kernels.Rope{Cos: mem.Zeros(kernels.F32, 1, rowsHeadDim/2), Sin: mem.Zeros(kernels.F32, 1, rowsHeadDim/2),
		HeadDim: rowsHeadDim}
	size := fmt.Sprintf(", %d x %d heads of %d", rowsTokens, rowsHeads, rowsHeadDim)
	return []RowsCase{
		{"head norm and rope" + size, []kernels.Tensor{x, y}, func() {
			d.HeadNormRope(y, rstd, x, w, at, rope, kernels.Norm{Eps: 1e-6})
		}},
		{"head norm and rope backward, weights too" + size, []kernels.Tensor{x, y, z}, func() {
			d.HeadNormRopeBackward(z, dw, y, x, rstd, w, at, rope, kernels.Norm{}, []int32{0, rowsTokens})
		}},
	}
}

func mixture(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	const pairs = rowsTokens * rowsTopK
	x, rows, more := RandomRows(d, mem, rowsTokens, rowsHidden), RandomRows(d, mem, pairs, rowsHidden),
		RandomRows(d, mem, pairs, rowsHidden)
	gu, h, dgu := RandomRows(d, mem, pairs, 2*rowsExpert), RandomRows(d, mem, pairs, rowsExpert),
		RandomRows(d, mem, pairs, 2*rowsExpert)
	logits, probs, weights := mem.Zeros(kernels.F32, rowsTokens, rowsExperts), mem.Zeros(kernels.F32, rowsTokens,
		rowsExperts), mem.Zeros(kernels.F32, rowsTokens, rowsTopK)
	d.Copy(logits, x.ColRange(0, rowsExperts))
	expertIDs, dweights := mem.New(kernels.I32, rowsTokens, rowsTopK), mem.Zeros(kernels.F32, rowsTokens, rowsTopK)
	plan := kernels.Plan{Groups: kernels.Groups{Offsets: mem.New(kernels.I32, 1, rowsExperts+1), Count: rowsExperts,
		Segments: 1},
		Source: mem.New(kernels.I32, 1, pairs), RowOf: mem.New(kernels.I32, rowsTokens, rowsTopK)}
	d.Route(weights, expertIDs, probs, logits, kernels.Router{Norm: true, Scale: 1})
	d.Dispatch(plan, expertIDs, []int32{0, rowsTokens})
	size := fmt.Sprintf(", %d x %d", pairs, 2*rowsExpert)
	tokens := fmt.Sprintf(", %d x %d, %d of %d", rowsTokens, rowsHidden, rowsTopK, rowsExperts)
	return []RowsCase{
		{"SwiGLU" + size, []kernels.Tensor{gu, h}, func() { d.SwiGLU(h, gu) }},
		{"SwiGLU backward" + size, []kernels.Tensor{gu, h, dgu}, func() { d.SwiGLUBackward(dgu, h, gu) }},
		{"route" + tokens, []kernels.Tensor{logits, probs, weights, expertIDs}, func() {
			d.Route(weights, expertIDs, probs, logits, kernels.Router{Norm: true, Scale: 1})
		}},
		{"dispatch" + tokens, []kernels.Tensor{expertIDs, expertIDs, plan.Source, plan.RowOf}, func() {
			d.Dispatch(plan, expertIDs, []int32{0, rowsTokens})
		}},
		{"gather" + tokens, []kernels.Tensor{rows, rows}, func() { d.Gather(rows, x, plan.Source) }},
		{"combine" + tokens, []kernels.Tensor{rows, x}, func() {
			d.Combine(x, kernels.Tensor{}, rows, weights, plan.RowOf)
		}},
		{"combine backward" + tokens, []kernels.Tensor{rows, more, rows}, func() {
			d.CombineBackward(more, dweights, x, rows, weights, plan.RowOf, kernels.AllRows)
		}},
	}
}

func logits(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	logits, wide := RandomRows(d, mem, rowsLogits, rowsVocab), mem.New(kernels.F32, rowsLogits, rowsVocab)
	d.Copy(wide, logits)
	stats, logprob, targets := mem.New(kernels.F32, rowsLogits, 2), mem.New(kernels.F32, 1, rowsLogits),
		mem.Zeros(kernels.I32, 1, rowsLogits)
	size := fmt.Sprintf(", %d x %d", rowsLogits, rowsVocab)
	return []RowsCase{
		{"log-softmax" + size, []kernels.Tensor{wide}, func() {
			d.LogProb(logprob, stats, wide, targets, kernels.Tensor{})
		}},
		{"log-softmax backward" + size, []kernels.Tensor{wide, logits}, func() {
			d.LogProbBackward(logits, logprob, stats, wide, targets, kernels.Tensor{})
		}},
	}
}

// The moments are numbers, as zeros take another way through the card's divisions and root: the steps that are timed,
// whose gradients are 0 after the first, keep nearly all of them.
func optimizer(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	f32 := func() kernels.Tensor { return mem.Zeros(kernels.F32, 1, rowsWeights) }
	w, master, m, v, grad := RandomRows(d, mem, 1, rowsWeights), f32(), f32(), f32(), f32()
	d.Copy(grad, w)
	d.Copy(master, w)
	clip, sum := mem.New(kernels.F32, 1, 2), mem.Zeros(kernels.F32, 1, 1)
	d.ClipScale(clip, sum, 1, 0)
	one := clip.ColRange(1, 2)
	d.AdamW(w, master, m, v, grad, one, kernels.AdamW{LR: 1e-9, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Correction1: 0.1,
		Correction2: 0.05})
	s := kernels.AdamW{LR: 1e-9, Beta1: 0.9999999, Beta2: 0.9999999, Eps: 1e-8, Correction1: 0.1, Correction2: 0.05}
	size := fmt.Sprintf(", %d", rowsWeights)
	quarters := m.Reshape(4, rowsWeights/4)
	return []RowsCase{
		{"zero, fp32" + size, []kernels.Tensor{master}, func() { d.Zero(grad) }},
		{"accumulate of 4, fp32, 4 x" + size[1:] + " / 4", []kernels.Tensor{quarters, quarters.RowRange(0, 2)}, func() {
			d.Accumulate(grad.Reshape(4, rowsWeights/4).RowRange(0, 1), quarters)
		}},
		{"sum of squares" + size, []kernels.Tensor{master}, func() { d.SumSquares(sum, master) }},
		{"AdamW" + size, []kernels.Tensor{w, master, master, m, m, v, v, grad, grad}, func() {
			d.AdamW(w, master, m, v, grad, one, s)
		}},
	}
}

func fakeQuantize(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	w := RandomRows(d, mem, rowsWeights/rowsHidden, rowsHidden)
	to := mem.New(kernels.BF16, w.Rows, w.Cols)
	size := fmt.Sprintf(", %d x %d", w.Rows, w.Cols)
	one := &kernels.Groups{Offsets: mem.Zeros(kernels.I32, 1, 2), Count: 1, Segments: 1}
	d.Write(one.Offsets, binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(w.Rows)))
	return []RowsCase{
		{"fake-quantized to int4" + size, []kernels.Tensor{w, to}, func() { d.FakeQuantize(to, w, quant.INT4) }},
		{"fake-quantized to mxfp4" + size, []kernels.Tensor{w, to}, func() { d.FakeQuantize(to, w, quant.MXFP4) }},
		{"fake-quantized to mxfp8" + size, []kernels.Tensor{w, to}, func() { d.FakeQuantize(to, w, quant.MXFP8) }},
		{"fake-quantized to fp8" + size, []kernels.Tensor{w, to}, func() { d.FakeQuantize(to, w, quant.FP8) }},
		{"fake-quantized to mxfp8 in blocks of rows" + size, []kernels.Tensor{w, to}, func() {
			d.FakeQuantizeRows(to, w, one)
		}},
	}
}

// quantize is what an update of weights in codes adds to AdamW's: codes of fp32 masters.
func quantize(d *cuda.Device, mem *kernels.Arena) (cases []RowsCase) {
	const rows = rowsWeights / rowsHidden / 2
	x := mem.New(kernels.F32, rows, rowsHidden)
	d.Copy(x, RandomRows(d, mem, rows, rowsHidden))
	for _, e := range quant.Encodings {
		w := kernels.NewQuantizedWeight(e.Format(), kernels.BF16, 1, rows, rowsHidden, mem.NewGrouped)
		cases = append(cases, RowsCase{fmt.Sprintf("fp32 masters into codes of %s, %d x %d", e, rows, rowsHidden),
			[]kernels.Tensor{x, w.Codes, w.Scales}, func() { d.Quantize(w, x, e, []int{0}) }})
	}
	return cases
}

// drawn are random weights, whose bound is not memory but their integers.
func drawn(d *cuda.Device, mem *kernels.Arena) []RowsCase {
	w := mem.New(kernels.BF16, rowsWeights/rowsHidden, rowsHidden)
	q := kernels.NewQuantizedWeight(quant.INT4.Format(), kernels.BF16, 1, w.Rows, w.Cols, mem.NewGrouped)
	size := fmt.Sprintf(", %d x %d", w.Rows, w.Cols)
	return []RowsCase{
		{"normal numbers drawn" + size, []kernels.Tensor{w}, func() {
			d.Draw(w, kernels.Draw{Kind: kernels.DrawNormal, Key: 1, Scale: 0.02})
		}},
		{"int4 codes drawn" + size, []kernels.Tensor{q.Codes, q.Scales}, func() { d.DrawCodes(q, 1, 0, 0.005) }},
	}
}
