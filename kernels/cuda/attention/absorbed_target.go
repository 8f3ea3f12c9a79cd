//go:build cuda

package attention

import (
	"fmt"

	"lockstep/kernels"
)

// targetAbsorbed is IndexTarget where all heads share one row for each key.
func (d *Ops) targetAbsorbed(target, q, k, lse, indices kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	lists, lines := d.listQueries(kernels.KV{K: k}, indices, l), stride64(a.HeadDim)
	shared := 2*(absorbedHeads+2*absorbedTargetPart)*lines + 4*absorbedHeads*(absorbedTargetPart+4) +
		4*2*absorbedTargetPart
	for head := 0; head < a.Heads; head += absorbedHeads {
		launchAbsorbedTarget(d.Context, fmt.Sprintf("_%d", a.HeadDim), [3]int{lists.queries, 1, 1}, absorbedThreads,
			shared, &lists.params, target, lse, q, k, head, min(absorbedHeads, a.Heads-head), target.Stride, lse.Stride,
			q.Stride, k.Stride, scoreScale(a))
	}
}
