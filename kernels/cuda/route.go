//go:build cuda

package cuda

import "lockstep/kernels"

// Route: probs F32 [T, E] is the softmax of logits F32 [T, E], experts int32 [T, K] the k largest, weights F32 [T, K] their p, with norm divided by their sum.
func (d *Device) Route(weights, experts, probs, logits kernels.Tensor, norm bool) {
	d.launch("route", warps(logits.Rows), warpThreads, 0, weights, experts, probs, logits, logits.Rows, logits.Cols, weights.Cols, probs.Stride, logits.Stride, norm)
}

// RouteBackward writes dlogits F32 [T, E] from dweights F32 [T, K].
func (d *Device) RouteBackward(dlogits, dweights, weights, experts, probs kernels.Tensor, norm bool) {
	d.launch("route_backward", warps(probs.Rows), warpThreads, 0, dlogits, dweights, weights, experts, probs, probs.Rows, probs.Cols, weights.Cols,
		dlogits.Stride, probs.Stride, norm)
}
