//go:build cuda

package moe

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// routeThreads are those of a block: few, so that few tokens are many blocks.
const routeThreads = 128

// routeEach is how many experts a lane keeps, as route.cu has it.
func routeEach(e, k int) int {
	for _, each := range []int{4, 8, 16, 32} {
		if e <= 32*each && k <= 32 {
			return each
		}
	}
	panic(kernels.Fault{Err: fmt.Errorf("routers on the GPU support up to 32 of up to 1024 experts, "+
		"not %d of %d", k, e)})
}

// Route chooses the experts of each token and their weights as kernels.Device states it. logits, probs F32 [T, E];
// experts int32 and weights F32 [T, K].
func (d *Ops) Route(weights, experts, probs, logits kernels.Tensor, r kernels.Router) {
	e, k := logits.Cols, weights.Cols
	if r.Groups != 0 && (r.Groups > kernels.MaxGroups || e%r.Groups != 0 || e/r.Groups < 2 || r.TopGroups <= 0 ||
		r.TopGroups > r.Groups) {
		panic(fmt.Sprintf("cuda: route: %d experts by %+v", e, r))
	}
	launchRoute(d.Context, fmt.Sprintf("_%d", routeEach(e, k)), [3]int{driver.Blocks(logits.Rows, routeThreads/32), 1,
		1}, routeThreads, 0, weights, experts, probs, logits, r.Bias, logits.Rows, e, k, probs.Stride, logits.Stride,
		driver.Flag(r.Sigmoid), r.Groups, r.TopGroups, driver.Flag(r.Norm), r.Epsilon, r.Scale)
}

// RouteBackward writes dlogits F32 [T, E] from dweights F32 [T, K] and what Route wrote.
func (d *Ops) RouteBackward(dlogits, dweights, weights, experts, probs kernels.Tensor, r kernels.Router) {
	launchRouteBackward(d.Context, driver.WarpGrid(probs.Rows), driver.WarpThreads, 0, dlogits, dweights, weights,
		experts, probs, probs.Rows, probs.Cols, weights.Cols, dlogits.Stride, probs.Stride, driver.Flag(r.Sigmoid),
		driver.Flag(r.Norm), r.Scale)
}
