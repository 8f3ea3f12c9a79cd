package serve

import "lockstep/kernels"

// This file records the operations that not every device has. DeltaNet and Mamba share those of Recurrent, so the
// methods of Recurrent are defined here to be unambiguous.

func (rec *recorder) recurrent() kernels.Recurrent {
	if rec.DeltaNet != nil {
		return rec.DeltaNet
	}
	return rec.Mamba
}

func (rec *recorder) ShortConv(out, x, w, bias, state kernels.Tensor, l *kernels.Layout) {
	rec.recurrent().ShortConv(out, x, w, bias, state, l)
	rec.record("conv", out)
}

func (rec *recorder) ShortConvBackward(dx, dw, dbias, dout, x, w, bias kernels.Tensor, l *kernels.Layout) {
	rec.recurrent().ShortConvBackward(dx, dw, dbias, dout, x, w, bias, l)
}

func (rec *recorder) Decay(g, step kernels.Tensor, x kernels.DecayOperands, lo, hi float32) {
	rec.recurrent().Decay(g, step, x, lo, hi)
	rec.record("decay", g)
}

func (rec *recorder) DecayBackward(dx kernels.DecayOperands, dg, dstep, g kernels.Tensor, x kernels.DecayOperands,
	lo, hi float32, segments []int32) {
	rec.recurrent().DecayBackward(dx, dg, dstep, g, x, lo, hi, segments)
}

func (rec *recorder) DeltaRule(out kernels.Tensor, x kernels.DeltaRuleOperands, s *kernels.ChunkState,
	l *kernels.Layout,
	r kernels.Recurrence) {
	rec.DeltaNet.DeltaRule(out, x, s, l, r)
	rec.record("delta rule", out)
}

func (rec *recorder) NormThenGate(out, rstd, x, z, w kernels.Tensor, eps float32) {
	rec.DeltaNet.NormThenGate(out, rstd, x, z, w, eps)
	rec.record("norm and gate", out)
}

func (rec *recorder) SigmoidGate(out, x, gate kernels.Tensor) {
	rec.DeltaNet.SigmoidGate(out, x, gate)
	rec.record("gate", out)
}

func (rec *recorder) StateSpace(out kernels.Tensor, x kernels.StateSpaceOperands, s *kernels.ChunkState,
	l *kernels.Layout,
	r kernels.Recurrence) {
	rec.Mamba.StateSpace(out, x, s, l, r)
	rec.record("state space", out)
}

func (rec *recorder) GateThenNorm(out, rstd, x, z, w kernels.Tensor, groups int, eps float32) {
	rec.Mamba.GateThenNorm(out, rstd, x, z, w, groups, eps)
	rec.record("gate and norm", out)
}

func (rec *recorder) ReLU2(out, x kernels.Tensor) {
	rec.Mamba.ReLU2(out, x)
	rec.record("relu2", out)
}

func (rec *recorder) LayerNorm(out, x, w, bias kernels.Tensor, eps float32) {
	rec.SparseAttention.LayerNorm(out, x, w, bias, eps)
	rec.record("layer norm", out)
}

func (rec *recorder) SelectKeys(selected, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout,
	x kernels.Index) {
	rec.SparseAttention.SelectKeys(selected, q, weights, keys, l, x)
	rec.record("keys", selected)
}

func (rec *recorder) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor, l *kernels.Layout,
	a kernels.Attn) {
	rec.SparseAttention.SparseAttend(out, lse, q, kv, selected, l, a)
	rec.record("attention", out)
}
