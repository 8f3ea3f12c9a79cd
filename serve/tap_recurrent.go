package serve

import "lockstep/kernels"

// The groups of operations that a device may lack. DeltaNet and Mamba share their Recurrent, which is named here.

func (t *tap) recurrent() kernels.Recurrent {
	if t.DeltaNet != nil {
		return t.DeltaNet
	}
	return t.Mamba
}

func (t *tap) ShortConv(out, x, w, bias, state kernels.Tensor, l *kernels.Layout) {
	t.recurrent().ShortConv(out, x, w, bias, state, l)
	t.saw("conv", out)
}

func (t *tap) ShortConvBackward(dx, dw, dbias, dout, x, w, bias kernels.Tensor, l *kernels.Layout) {
	t.recurrent().ShortConvBackward(dx, dw, dbias, dout, x, w, bias, l)
}

func (t *tap) Decay(g, step kernels.Tensor, x kernels.DecayOperands, lo, hi float32) {
	t.recurrent().Decay(g, step, x, lo, hi)
	t.saw("decay", g)
}

func (t *tap) DecayBackward(dx kernels.DecayOperands, dg, dstep, g kernels.Tensor, x kernels.DecayOperands,
	lo, hi float32, packs []int32) {
	t.recurrent().DecayBackward(dx, dg, dstep, g, x, lo, hi, packs)
}

func (t *tap) DeltaRule(out kernels.Tensor, x kernels.DeltaRuleOperands, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	t.DeltaNet.DeltaRule(out, x, s, l, r)
	t.saw("delta rule", out)
}

func (t *tap) NormThenGate(out, rstd, x, z, w kernels.Tensor, eps float32) {
	t.DeltaNet.NormThenGate(out, rstd, x, z, w, eps)
	t.saw("norm and gate", out)
}

func (t *tap) SigmoidGate(out, x, gate kernels.Tensor) {
	t.DeltaNet.SigmoidGate(out, x, gate)
	t.saw("gate", out)
}

func (t *tap) StateSpace(out kernels.Tensor, x kernels.StateSpaceOperands, s *kernels.ChunkState, l *kernels.Layout,
	r kernels.Recurrence) {
	t.Mamba.StateSpace(out, x, s, l, r)
	t.saw("state space", out)
}

func (t *tap) GateThenNorm(out, rstd, x, z, w kernels.Tensor, groups int, eps float32) {
	t.Mamba.GateThenNorm(out, rstd, x, z, w, groups, eps)
	t.saw("gate and norm", out)
}

func (t *tap) ReLU2(out, x kernels.Tensor) {
	t.Mamba.ReLU2(out, x)
	t.saw("relu2", out)
}

func (t *tap) LayerNorm(out, x, w, bias kernels.Tensor, eps float32) {
	t.SparseAttention.LayerNorm(out, x, w, bias, eps)
	t.saw("layer norm", out)
}

func (t *tap) SelectKeys(picks, q, weights kernels.Tensor, keys kernels.KV, l *kernels.Layout, x kernels.Index) {
	t.SparseAttention.SelectKeys(picks, q, weights, keys, l, x)
	t.saw("keys", picks)
}

func (t *tap) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, picks kernels.Tensor, l *kernels.Layout,
	a kernels.Attn) {
	t.SparseAttention.SparseAttend(out, lse, q, kv, picks, l, a)
	t.saw("attention", out)
}
