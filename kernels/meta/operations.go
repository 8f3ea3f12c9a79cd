package meta

import (
	"lockstep/kernels"
	"lockstep/quant"
)

// Operations compute nothing. Where the device counts work, each counts what it would compute and move; see [Work].

func (d *Device) Zero(t kernels.Tensor)        { d.rows(t) }
func (d *Device) Copy(dst, src kernels.Tensor) { d.rows(dst, src) }

// Draw writes weights, before a run.
func (d *Device) Draw(t kernels.Tensor, _ kernels.Draw) { d.optimizer(t) }

// Embed reads the rows of its tokens alone.
func (d *Device) Embed(out, _, _ kernels.Tensor) { d.rows(out, out) }

// EmbedBackward reads and writes the rows of its tokens.
func (d *Device) EmbedBackward(_, dout, _ kernels.Tensor, _ []int32) {
	rows := dout
	rows.DType = kernels.F32
	d.rows(dout, rows, rows)
}
func (d *Device) Add(out, a, b kernels.Tensor)                        { d.rows(out, a, b) }
func (d *Device) AddBias(out, x, _ kernels.Tensor, _ *kernels.Groups) { d.rows(out, x) }
func (d *Device) BiasGrad(_, dy kernels.Tensor, _ *kernels.Groups)    { d.rows(dy) }

// Accumulate, SumSquares and AdamW count each tensor as a call, as what is measured of a machine has one.
func (d *Device) Accumulate(dst, parts kernels.Tensor, then ...kernels.PartSum) {
	for _, of := range append([]kernels.PartSum{{Dst: dst, Parts: parts}}, then...) {
		d.rows(of.Dst, of.Dst, of.Parts)
	}
}
func (d *Device) Scale(out, x kernels.Tensor, _ float32)              { d.rows(out, x) }
func (d *Device) Dropout(out, x kernels.Tensor, _ kernels.Dropout)    { d.rows(out, x) }
func (d *Device) RMSNorm(out, _, x, _ kernels.Tensor, _ kernels.Norm) { d.rows(out, x) }
func (d *Device) AddRMSNorm(out, sum, _, a, b, _ kernels.Tensor, _ kernels.Norm) {
	d.rows(out, sum, a, b)
}
func (d *Device) RMSNormBackward(dx, _, dy, x, _, _ kernels.Tensor, _ kernels.Norm, _ []int32) {
	d.rows(dx, dx, dy, x)
}
func (d *Device) HeadNormRope(out, _, x, _, _ kernels.Tensor, _ kernels.Rope, _ kernels.Norm) {
	d.rows(out, x)
}
func (d *Device) HeadNormRopeBackward(dx, _, dout, x, _, _, _ kernels.Tensor, _ kernels.Rope, _ kernels.Norm,
	_ []int32) {
	d.rows(dx, dout, x)
}
func (d *Device) JoinHeads(out, own, shared kernels.Tensor)            { d.rows(out, own, shared) }
func (d *Device) JoinHeadsBackward(dOwn, dshared, dout kernels.Tensor) { d.rows(dOwn, dshared, dout) }
func (d *Device) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product(out, g, terms)
}
func (d *Device) MatMulLoRA(out, u, x, a kernels.Tensor, _ float32, g *kernels.Groups, terms ...kernels.Term) {
	d.product(u, g, []kernels.Term{{X: x, W: a}})
	d.product(out, g, terms)
}
func (d *Device) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	d.product(out, g, terms)
}
func (d *Device) WeightGrad(dw, dy, x kernels.Tensor, g *kernels.Groups, then ...kernels.GradRows) {
	d.weightGrad(dw, append([]kernels.GradRows{{DY: dy, X: x, Groups: g}}, then...))
}
func (d *Device) StoreKV(_ kernels.KV, k, v kernels.Tensor, _ *kernels.Layout) { d.rows(k, k, v, v) }
func (d *Device) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	d.attention(Attention, kv, l, 0, a, out, lse, q)
}
func (d *Device) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout,
	a kernels.Attn) {
	d.attention(AttentionBackward, kv, l, 0, a, dq, dk, dv, dout, out, lse, q)
}
func (d *Device) Sinks(out, lse, _ kernels.Tensor) { d.rows(out, out, lse) }
func (d *Device) SinksBackward(_, dout, out, lse, _ kernels.Tensor, _ []int32) {
	d.rows(dout, out, lse)
}
func (d *Device) Route(weights, experts, probs, logits kernels.Tensor, _ kernels.Router) {
	d.rows(weights, experts, probs, logits)
}
func (d *Device) RouteBackward(dlogits, _, _, _, probs kernels.Tensor, _ kernels.Router) {
	d.rows(dlogits, probs)
}
func (d *Device) Dispatch(p kernels.Plan, experts kernels.Tensor, _ []int32) {
	if d.work == nil {
		return
	}
	d.count(Sort, float64(experts.Len()), bytesOf(p.Source, p.RowOf, experts))
	if experts.Len() > fewSorted { // count, scan and deal
		d.work.Costs[Sort].Calls += 2
	}
}

// fewSorted rows of experts are sorted by one kernel of a GPU.
const fewSorted = 8192

// Gather reads a row for each that it writes.
func (d *Device) Gather(out, _, _ kernels.Tensor) { d.rows(out, out) }
func (d *Device) Combine(out, residual, y, _, _ kernels.Tensor) {
	if residual.IsNil() {
		d.rows(out, y)
		return
	}
	d.rows(out, residual, y)
}
func (d *Device) CombineBackward(dy, _, _, y, _, _ kernels.Tensor, _ int) {
	d.rows(dy, dy, y) // a row of dout for each of dy
}
func (d *Device) SwiGLU(out, gu kernels.Tensor)                         { d.rows(out, gu) }
func (d *Device) SwiGLUBackward(dgu, dout, gu kernels.Tensor)           { d.rows(dgu, dout, gu) }
func (d *Device) ClampedSwiGLU(out, gu kernels.Tensor, _ kernels.Clamp) { d.rows(out, gu) }
func (d *Device) ClampedSwiGLUBackward(dgu, dout, gu kernels.Tensor, _ kernels.Clamp) {
	d.rows(dgu, dout, gu)
}
func (d *Device) LogProb(_, _, logits, _, _ kernels.Tensor)                  { d.rows(logits) }
func (d *Device) LogProbBackward(dlogits, _, _, logits, _, _ kernels.Tensor) { d.rows(dlogits, logits) }
func (d *Device) Sample(_, logits kernels.Tensor, _ []kernels.Sampling)      { d.rows(logits) }
func (d *Device) AdjustLogits(logits kernels.Tensor, _ []kernels.Adjustment) { d.rows(logits, logits) }
func (d *Device) SumSquares(_, t kernels.Tensor, then ...kernels.Squares) {
	for _, of := range append([]kernels.Squares{{T: t}}, then...) {
		d.optimizer(of.T)
	}
}
func (d *Device) ClipScale(_, sums kernels.Tensor, _, _ float64) { d.optimizer(sums) }

// AdamW reads and writes all but the weight, which it writes.
func (d *Device) AdamW(w, master, m, v, grad, _ kernels.Tensor, _ kernels.AdamW, then ...kernels.Moments) {
	for _, of := range append([]kernels.Moments{{W: w, Master: master, M: m, V: v, Grad: grad}}, then...) {
		d.optimizer(of.W, of.Master, of.Master, of.M, of.M, of.V, of.V, of.Grad, of.Grad)
	}
}

// Operations of [kernels.QuantizedProducts].

func (d *Device) CheckQuantized(_ kernels.QuantizedWeight) error { return nil }
func (d *Device) Quantize(w kernels.QuantizedWeight, x kernels.Tensor, _ quant.Encoding, _ []int) {
	d.optimizer(x, w.Codes, w.Scales)
}
func (d *Device) CheckCodes(kernels.QuantizedWeight) error { return nil }
func (d *Device) QuantizeRows(w kernels.QuantizedWeight, x kernels.Tensor) {
	d.rows(x, w.Codes, w.Scales)
}
func (d *Device) DrawCodes(w kernels.QuantizedWeight, _ uint64, _ int, _ float32) {
	d.optimizer(w.Codes, w.Scales)
}
func (d *Device) Dequantize(out kernels.Tensor, w kernels.QuantizedWeight) {
	d.rows(out, w.Codes, w.Scales)
}
func (d *Device) FakeQuantize(out, x kernels.Tensor, _ quant.Encoding)      { d.rows(out, x) }
func (d *Device) FakeQuantizeRows(out, x kernels.Tensor, _ *kernels.Groups) { d.rows(out, x) }
func (d *Device) FakeQuantizeHeads(x kernels.Tensor, _ int)                 { d.rows(x, x) }

// Operations of [kernels.Recurrent].

func (d *Device) ShortConv(out, x, _, _, _ kernels.Tensor, _ *kernels.Layout) { d.rows(out, x) }
func (d *Device) ShortConvBackward(dx, _, _, dout, x, _, _ kernels.Tensor, _ *kernels.Layout) {
	d.rows(dx, dout, x)
}
func (d *Device) Decay(g, step kernels.Tensor, x kernels.DecayOperands, _, _ float32) {
	d.rows(g, step, x.A)
}
func (d *Device) DecayBackward(dx kernels.DecayOperands, dg, dstep, g kernels.Tensor, x kernels.DecayOperands,
	_, _ float32, _ []int32) {
	d.rows(dx.A, dg, dstep, g, x.A)
}

// Operations of [kernels.DeltaNet].

func (d *Device) DeltaRule(out kernels.Tensor, x kernels.DeltaRuleOperands, _ *kernels.ChunkState, _ *kernels.Layout,
	r kernels.Recurrence) {
	d.recurrence(1, r, out, x.Q, x.K, x.V, x.G, x.B)
}

// backwardTimes is what a recurrence's gradient takes, as a multiple of its forward: on an H200 5.3 times of one long
// sequence, of 32 heads and of 16; 7.2 of short ones, whose forward is shorter by a quarter. Its products are 3 times
// as many: the states again, and two for each.
const backwardTimes = 5.3

func (d *Device) DeltaRuleBackward(dx kernels.DeltaRuleOperands, dout kernels.Tensor, x kernels.DeltaRuleOperands,
	_ *kernels.Layout, r kernels.Recurrence) {
	d.recurrence(backwardTimes, r, dout, dx.Q, dx.K, dx.V, dx.G, dx.B, x.Q, x.K, x.V, x.G, x.B)
}
func (d *Device) NormThenGate(out, _, x, z, _ kernels.Tensor, _ float32) { d.rows(out, x, z) }
func (d *Device) NormThenGateBackward(dx, dz, _, dout, x, z, _, _ kernels.Tensor, _ []int32) {
	d.rows(dx, dz, dout, x, z)
}
func (d *Device) SigmoidGate(out, x, gate kernels.Tensor) { d.rows(out, x, gate) }
func (d *Device) SigmoidGateBackward(dx, dgate, dout, x, gate kernels.Tensor) {
	d.rows(dx, dgate, dout, x, gate)
}

// Operations of [kernels.Mamba].

func (d *Device) StateSpace(out kernels.Tensor, x kernels.StateSpaceOperands, _ *kernels.ChunkState,
	_ *kernels.Layout, r kernels.Recurrence) {
	d.recurrence(1, r, out, x.C, x.B, x.X, x.G, x.DT)
}
func (d *Device) StateSpaceBackward(dx kernels.StateSpaceOperands, dout kernels.Tensor, x kernels.StateSpaceOperands,
	_ *kernels.Layout, r kernels.Recurrence) {
	d.recurrence(backwardTimes, r, dout, dx.C, dx.B, dx.X, dx.G, dx.DT, x.C, x.B, x.X, x.G, x.DT)
}
func (d *Device) GateThenNorm(out, _, x, z, _ kernels.Tensor, _ int, _ float32) { d.rows(out, x, z) }
func (d *Device) GateThenNormBackward(dx, dz, _, dout, x, z, _, _ kernels.Tensor, _ int, _ []int32) {
	d.rows(dx, dz, dout, x, z)
}
func (d *Device) ReLU2(out, x kernels.Tensor)              { d.rows(out, x) }
func (d *Device) ReLU2Backward(dx, dout, x kernels.Tensor) { d.rows(dx, dout, x) }

// Operations of [kernels.SparseAttention].

func (d *Device) LayerNorm(out, x, _, _ kernels.Tensor, _ float32) { d.rows(out, x) }
func (d *Device) SelectKeys(selected, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout,
	x kernels.Index) {
	d.index(Attention, 1, l, 0, x.Heads, x.Dim, selected, q, weights)
}
func (d *Device) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor, l *kernels.Layout,
	a kernels.Attn) {
	d.attention(Attention, kv, l, selected.Cols, a, out, lse, q, selected)
}

func (d *Device) SparseAttendBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	queries, _ := divided(a)
	d.attentionPart(queries, AttentionBackward, kv, l, selected.Cols, a, dq, dout, out, lse, q, selected)
	d.keyGrad(kv, l, selected.Cols, a, kernels.KeyPart{To: l.Rows(), Keys: [][2]int{{0, l.Rows()}}}, dk, dv, dout, out,
		lse, q, selected)
}

// Operations of [kernels.DividedAttention].

func (d *Device) AttentionDelta(delta, dout, out kernels.Tensor, _ kernels.Attn) {
	d.rows(delta, dout, out)
}
func (d *Device) AttentionQueryGrad(dq, dout, delta, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	queries, _ := divided(a)
	d.attentionPart(queries, AttentionBackward, kv, l, selected.Cols, a, dq, dout, delta, lse, q, selected)
}

func (d *Device) AttentionKeyGrad(dk, dv, sums, dout, delta, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor, l *kernels.Layout, a kernels.Attn, part kernels.KeyPart) {
	own := func(t kernels.Tensor) kernels.Tensor { // as many rows as the part's keys
		t.Rows = 0
		for _, keys := range part.Keys {
			t.Rows += keys[1] - keys[0]
		}
		return t
	}
	tensors := []kernels.Tensor{dout, delta, lse, q, selected, own(sums), own(sums)}
	if part.Ends {
		tensors = append(tensors, own(dk), own(dv))
	}
	d.keyGrad(kv, l, selected.Cols, a, part, tensors...)
}

// Operations of [kernels.IndexerLoss].

func (d *Device) LayerNormBackward(dx, _, _, dy, x, _ kernels.Tensor, _ float32, _ []int32) {
	d.rows(dx, dy, x)
}
func (d *Device) IndexTarget(_, q, _, lse, selected kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	d.index(AttentionBackward, 1, l, selected.Cols, a.Heads, a.HeadDim, q, lse, selected)
}
func (d *Device) IndexLoss(loss, _, q, weights, _, selected kernels.Tensor, l *kernels.Layout, x kernels.Index) {
	d.index(AttentionBackward, 1, l, selected.Cols, x.Heads, x.Dim, loss, q, weights, selected)
}
func (d *Device) IndexBackward(dq, dk, dw, _, q, weights, k, selected kernels.Tensor, l *kernels.Layout,
	x kernels.Index) {
	d.index(AttentionBackward, 3, l, selected.Cols, x.Heads, x.Dim, dq, dk, dw, q, weights, k, selected)
}
