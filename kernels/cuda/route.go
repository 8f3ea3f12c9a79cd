//go:build cuda

package cuda

import (
	"fmt"

	"lockstep/kernels"
)

// Route chooses the experts of each token and their weights as kernels.Device states it. logits, probs F32 [T, E]; experts int32 and weights F32 [T, K].
func (d *Device) Route(weights, experts, probs, logits kernels.Tensor, r kernels.Router) {
	e := logits.Cols
	if r.Groups != 0 && (r.Groups > kernels.MaxGroups || e%r.Groups != 0 || e/r.Groups < 2 || r.TopGroups <= 0 || r.TopGroups > r.Groups) {
		panic(fmt.Sprintf("cuda: route: %d experts by %+v", e, r))
	}
	d.launch("route", warps(logits.Rows), warpThreads, 0, weights, experts, probs, logits, r.Bias, logits.Rows, e, weights.Cols, probs.Stride, logits.Stride,
		r.Sigmoid, r.Groups, r.TopGroups, r.Norm, r.Epsilon, r.Scale)
}

// RouteBackward writes dlogits F32 [T, E] from dweights F32 [T, K] and what Route wrote.
func (d *Device) RouteBackward(dlogits, dweights, weights, experts, probs kernels.Tensor, r kernels.Router) {
	d.launch("route_backward", warps(probs.Rows), warpThreads, 0, dlogits, dweights, weights, experts, probs, probs.Rows, probs.Cols, weights.Cols,
		dlogits.Stride, probs.Stride, r.Sigmoid, r.Norm, r.Scale)
}
