package meta

import (
	"lockstep/kernels"
	"lockstep/quant"
)

// Operations of [kernels.Device] compute nothing.

func (d *Device) Zero(_ kernels.Tensor)                                                      {}
func (d *Device) Copy(_, _ kernels.Tensor)                                                   {}
func (d *Device) Embed(_, _, _ kernels.Tensor)                                               {}
func (d *Device) EmbedBackward(_, _, _ kernels.Tensor, _ []int32)                            {}
func (d *Device) Add(_, _, _ kernels.Tensor)                                                 {}
func (d *Device) AddBias(_, _, _ kernels.Tensor, _ *kernels.Groups)                          {}
func (d *Device) BiasGrad(_, _ kernels.Tensor, _ *kernels.Groups)                            {}
func (d *Device) Accumulate(_, _ kernels.Tensor)                                             {}
func (d *Device) Scale(_, _ kernels.Tensor, _ float32)                                       {}
func (d *Device) RMSNorm(_, _, _, _ kernels.Tensor, _ kernels.Norm)                          {}
func (d *Device) RMSNormBackward(_, _, _, _, _, _ kernels.Tensor, _ kernels.Norm, _ []int32) {}
func (d *Device) HeadNormRope(_, _, _, _, _ kernels.Tensor, _ kernels.Rope, _ kernels.Norm)  {}
func (d *Device) HeadNormRopeBackward(_, _, _, _, _, _, _ kernels.Tensor, _ kernels.Rope, _ kernels.Norm, _ []int32) {
}
func (d *Device) JoinHeads(_, _, _ kernels.Tensor)                                                  {}
func (d *Device) JoinHeadsBackward(_, _, _ kernels.Tensor)                                          {}
func (d *Device) MatMul(_ kernels.Tensor, _ *kernels.Groups, _ ...kernels.Term)                     {}
func (d *Device) MatMulT(_ kernels.Tensor, _ *kernels.Groups, _ ...kernels.Term)                    {}
func (d *Device) WeightGrad(_, _, _ kernels.Tensor, _ *kernels.Groups)                              {}
func (d *Device) StoreKV(_ kernels.KV, _, _ kernels.Tensor, _ *kernels.Layout)                      {}
func (d *Device) Attention(_, _, _ kernels.Tensor, _ kernels.KV, _ *kernels.Layout, _ kernels.Attn) {}
func (d *Device) AttentionBackward(_, _, _, _, _, _, _ kernels.Tensor, _ kernels.KV, _ *kernels.Layout,
	_ kernels.Attn) {
}
func (d *Device) Sinks(_, _, _ kernels.Tensor)                                  {}
func (d *Device) SinksBackward(_, _, _, _, _ kernels.Tensor, _ []int32)         {}
func (d *Device) Route(_, _, _, _ kernels.Tensor, _ kernels.Router)             {}
func (d *Device) RouteBackward(_, _, _, _, _ kernels.Tensor, _ kernels.Router)  {}
func (d *Device) Dispatch(_ kernels.Plan, _ kernels.Tensor, _ []int32)          {}
func (d *Device) Gather(_, _, _ kernels.Tensor)                                 {}
func (d *Device) Combine(_, _, _, _ kernels.Tensor)                             {}
func (d *Device) CombineBackward(_, _, _, _, _, _, _ kernels.Tensor)            {}
func (d *Device) SwiGLU(_, _ kernels.Tensor)                                    {}
func (d *Device) SwiGLUBackward(_, _, _ kernels.Tensor)                         {}
func (d *Device) ClampedSwiGLU(_, _ kernels.Tensor, _ kernels.Clamp)            {}
func (d *Device) ClampedSwiGLUBackward(_, _, _ kernels.Tensor, _ kernels.Clamp) {}
func (d *Device) LogProb(_, _, _, _, _ kernels.Tensor)                          {}
func (d *Device) LogProbBackward(_, _, _, _, _, _ kernels.Tensor)               {}
func (d *Device) Sample(_, _ kernels.Tensor, _ []kernels.Sampling)              {}
func (d *Device) AdjustLogits(_ kernels.Tensor, _ []kernels.Adjustment)         {}
func (d *Device) SumSquares(_, _ kernels.Tensor)                                {}
func (d *Device) ClipScale(_, _ kernels.Tensor, _, _ float64)                   {}
func (d *Device) AdamW(_, _, _, _, _, _ kernels.Tensor, _ kernels.AdamW)        {}

// Operations of [kernels.QuantizedProducts].

func (d *Device) CheckQuantized(_ kernels.QuantizedWeight) error                                  { return nil }
func (d *Device) Quantize(_ kernels.QuantizedWeight, _ kernels.Tensor, _ quant.Encoding, _ []int) {}
func (d *Device) Dequantize(_ kernels.Tensor, _ kernels.QuantizedWeight)                          {}

// Operations of [kernels.Recurrent].

func (d *Device) ShortConv(_, _, _, _, _ kernels.Tensor, _ *kernels.Layout)               {}
func (d *Device) ShortConvBackward(_, _, _, _, _, _, _ kernels.Tensor, _ *kernels.Layout) {}
func (d *Device) Decay(_, _ kernels.Tensor, _ kernels.DecayOperands, _, _ float32)        {}
func (d *Device) DecayBackward(_ kernels.DecayOperands, _, _, _ kernels.Tensor, _ kernels.DecayOperands, _, _ float32,
	_ []int32) {
}

// Operations of [kernels.DeltaNet].

func (d *Device) DeltaRule(_ kernels.Tensor, _ kernels.DeltaRuleOperands, _ *kernels.ChunkState, _ *kernels.Layout,
	_ kernels.Recurrence) {
}
func (d *Device) DeltaRuleBackward(_ kernels.DeltaRuleOperands, _ kernels.Tensor, _ kernels.DeltaRuleOperands,
	_ *kernels.Layout, _ kernels.Recurrence) {
}
func (d *Device) NormThenGate(_, _, _, _, _ kernels.Tensor, _ float32)                  {}
func (d *Device) NormThenGateBackward(_, _, _, _, _, _, _, _ kernels.Tensor, _ []int32) {}
func (d *Device) SigmoidGate(_, _, _ kernels.Tensor)                                    {}
func (d *Device) SigmoidGateBackward(_, _, _, _, _ kernels.Tensor)                      {}

// Operations of [kernels.Mamba].

func (d *Device) StateSpace(_ kernels.Tensor, _ kernels.StateSpaceOperands, _ *kernels.ChunkState, _ *kernels.Layout,
	_ kernels.Recurrence) {
}
func (d *Device) StateSpaceBackward(_ kernels.StateSpaceOperands, _ kernels.Tensor, _ kernels.StateSpaceOperands,
	_ *kernels.Layout, _ kernels.Recurrence) {
}
func (d *Device) GateThenNorm(_, _, _, _, _ kernels.Tensor, _ int, _ float32)                  {}
func (d *Device) GateThenNormBackward(_, _, _, _, _, _, _, _ kernels.Tensor, _ int, _ []int32) {}
func (d *Device) ReLU2(_, _ kernels.Tensor)                                                    {}
func (d *Device) ReLU2Backward(_, _, _ kernels.Tensor)                                         {}

// Operations of [kernels.SparseAttention].

func (d *Device) LayerNorm(_, _, _, _ kernels.Tensor, _ float32) {}
func (d *Device) SelectKeys(_, _, _ kernels.Tensor, _ kernels.KV, _ *kernels.Layout, _ kernels.Index) {
}
func (d *Device) SparseAttend(_, _, _ kernels.Tensor, _ kernels.KV, _ kernels.Tensor, _ *kernels.Layout,
	_ kernels.Attn) {
}
func (d *Device) SparseAttendBackward(_, _, _, _, _, _, _ kernels.Tensor, _ kernels.KV, _ kernels.Tensor,
	_ *kernels.Layout, _ kernels.Attn) {
}

// Operations of [kernels.IndexerLoss].

func (d *Device) LayerNormBackward(_, _, _, _, _, _ kernels.Tensor, _ float32, _ []int32)     {}
func (d *Device) IndexTarget(_, _, _, _, _ kernels.Tensor, _ *kernels.Layout, _ kernels.Attn) {}
func (d *Device) IndexLoss(_, _, _, _, _, _ kernels.Tensor, _ *kernels.Layout, _ kernels.Index) {
}
func (d *Device) IndexBackward(_, _, _, _, _, _, _, _ kernels.Tensor, _ *kernels.Layout, _ kernels.Index) {
}
