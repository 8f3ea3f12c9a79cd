//go:build cuda

package selftest

import (
	"math/rand/v2"

	"lockstep/kernels"
)

// recurrentCheck is a layer with a recurrent state: a sequence goes through its convolution, its decays and its state
// to a norm with a gate, and gradients come back.
type recurrentCheck struct {
	kernels.Recurrence
	layerCheck
}

const convTaps = 4

func newRecurrentCheck(d kernels.Device, mem *kernels.Arena, r *rand.Rand, shape kernels.Recurrence) *recurrentCheck {
	return &recurrentCheck{shape, newLayerCheck(d, mem, r)}
}

// perHead is a number for each row and head.
func (t *recurrentCheck) perHead() kernels.Tensor { return t.layerCheck.perHead(t.Heads) }

// layer runs a layer forward and backward: inner is its state, outer its norm, each with its gradient.
func (t *recurrentCheck) layer(d kernels.Recurrent, inner func(u, g, step kernels.Tensor, du, dg,
	dstep kernels.Tensor)) kernels.Tensor {
	width := 2*t.KeyHeads*t.KeyDim + t.Heads*t.ValueDim
	x, w, bias := t.rows(width), t.random(kernels.BF16, width, convTaps), t.random(kernels.BF16, 1, width)
	a, rate, shift := t.rows(t.Heads), t.random(kernels.F32, 1, t.Heads), t.random(kernels.F32, 1, t.Heads)
	u, g, step := t.activation(width), t.perHead(), t.perHead()
	d.ShortConv(u, x, w, bias, kernels.Tensor{}, t.l)
	d.Decay(g, step, kernels.DecayOperands{A: a, Rate: rate, Bias: shift}, 0.01, 1.5)

	du, dg, dstep := t.activation(width), t.perHead(), t.perHead()
	inner(u, g, step, du, dg, dstep)
	d.DecayBackward(kernels.DecayOperands{A: t.activation(t.Heads), Rate: t.result(kernels.F32, 1, t.Heads),
		Bias: t.result(kernels.F32, 1, t.Heads)}, dg,
		dstep, g, kernels.DecayOperands{A: a, Rate: rate, Bias: shift}, 0.01, 1.5, t.l.Segments)
	d.ShortConvBackward(t.activation(width), t.result(kernels.F32, width, convTaps),
		t.result(kernels.F32, 1, width), du, x, w, bias, t.l)
	return t.all()
}

// parts are keys' columns twice, and values'.
func (t *recurrentCheck) parts(u kernels.Tensor) (q, k, v kernels.Tensor) {
	keys := t.KeyHeads * t.KeyDim
	return u.ColRange(0, keys), u.ColRange(keys, 2*keys), u.ColRange(2*keys, u.Cols)
}

func runDeltaNet(d kernels.DeltaNet, t *recurrentCheck) kernels.Tensor {
	return t.layer(d, func(u, g, _, du, dg, _ kernels.Tensor) {
		values := t.Heads * t.ValueDim
		q, k, v := t.parts(u)
		dq, dk, dv := t.parts(du)
		b, z, gate, w, dout := t.rows(t.Heads), t.rows(values), t.rows(1), t.random(kernels.F32, 1, t.ValueDim),
			t.rows(values)
		o, y, rstd, dy, do := t.activation(values), t.activation(values), t.perHead(), t.activation(values),
			t.activation(values)
		d.DeltaRule(o, kernels.DeltaRuleOperands{Q: q, K: k, V: v, G: g, B: b}, nil, t.l, t.Recurrence)
		d.NormThenGate(y, rstd, o, z, w, 1e-6)
		d.SigmoidGate(t.activation(values), y, gate)
		d.SigmoidGateBackward(dy, t.activation(1), dout, y, gate)
		d.NormThenGateBackward(do, t.activation(values), t.result(kernels.F32, 1, t.ValueDim), dy, o, z, rstd, w,
			t.l.Segments)
		d.DeltaRuleBackward(kernels.DeltaRuleOperands{Q: dq, K: dk, V: dv, G: dg, B: t.activation(t.Heads)}, do,
			kernels.DeltaRuleOperands{Q: q, K: k, V: v, G: g, B: b}, t.l, t.Recurrence)
	})
}

func runMamba(d kernels.Mamba, t *recurrentCheck) kernels.Tensor {
	return t.layer(d, func(u, g, step, du, dg, dstep kernels.Tensor) {
		values := t.Heads * t.ValueDim
		c, b, x := t.parts(u)
		dc, db, dx := t.parts(du)
		skip, z, w, dout := t.random(kernels.F32, 1, t.Heads), t.rows(values), t.random(kernels.BF16, 1, values),
			t.rows(values)
		o, y, rstd, dy, do := t.activation(values), t.activation(values), t.result(kernels.F32, layerRows, 1),
			t.activation(values), t.activation(values)
		d.StateSpace(o, kernels.StateSpaceOperands{C: c, B: b, X: x, G: g, DT: step, Skip: skip}, nil, t.l,
			t.Recurrence)
		d.GateThenNorm(y, rstd, o, z, w, 1, 1e-5)
		d.ReLU2(t.activation(values), y)
		d.ReLU2Backward(dy, dout, y)
		d.GateThenNormBackward(do, t.activation(values), t.result(kernels.F32, 1, values), dy, o, z, rstd, w, 1,
			t.l.Segments)
		d.StateSpaceBackward(kernels.StateSpaceOperands{C: dc, B: db, X: dx, G: dg, DT: dstep,
			Skip: t.result(kernels.F32, 1, t.Heads)}, do, kernels.StateSpaceOperands{C: c, B: b, X: x, G: g, DT: step,
			Skip: skip}, t.l,
			t.Recurrence)
	})
}
