//go:build cuda

package moe

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// routers are settings of every kind; those with Norm set use the bias given.
func routers(e int) []kernels.Router {
	all := []kernels.Router{{Scale: 1}, {Norm: true, Scale: 1}, {Norm: true, Scale: 2.5}, {Scale: 0.3},
		{Sigmoid: true, Scale: 1.5}, {Sigmoid: true, Norm: true, Epsilon: 1e-20, Scale: 2.5}}
	if e%8 == 0 && e >= 16 {
		all = append(all, kernels.Router{Sigmoid: true, Norm: true, Groups: 8, TopGroups: 3, Scale: 1},
			kernels.Router{Groups: 2, TopGroups: 1, Scale: 1})
	}
	return all
}

func TestRoute(t *testing.T) {
	for _, s := range [][3]int{{1, 4, 2}, {77, 8, 2}, {1000, 128, 8}, {513, 384, 8}, {64, 256, 8}, {300, 3, 3},
		{118, 33, 1}, {9, 40, 10}, {20, 512, 10}, {5, 1024, 32}} {
		tokens, e, k := s[0], s[1], s[2]
		for _, r := range routers(e) {
			name := fmt.Sprintf("route %d of %d by %+v", k, e, r)
			coarse := cudatest.Strided(kernels.F32, tokens, e, 3)
			for i := 0; i < len(coarse.Raw); i += 4 { // ties
				coarse.Raw[i], coarse.Raw[i+1], coarse.Raw[i+2] = 0, 0, coarse.Raw[i+2]&0xc0
			}
			cudatest.Both(t, name, []cudatest.Operand{cudatest.Normal(kernels.F32, tokens, k, 1),
				cudatest.Ints(tokens, k, make([]int32, tokens*k)),
				cudatest.Normal(kernels.F32, tokens, e, 1), coarse, cudatest.Normal(kernels.F32, 1, e, 0.5)},
				func(d kernels.Device, x []kernels.Tensor) {
					r := r
					if r.Norm {
						r.Bias = x[4]
					}
					d.Route(x[0], x[1], x[2], x[3], r)
				})
			cudatest.Both(t, name+" backward", []cudatest.Operand{cudatest.Normal(kernels.F32, tokens, e, 1),
				cudatest.Normal(kernels.F32, tokens, k, 1),
				cudatest.Positive(tokens, k), cudatest.Ints(tokens, k, randomExperts(tokens, e, k)),
				cudatest.Positive(tokens, e)},
				func(d kernels.Device, x []kernels.Tensor) { d.RouteBackward(x[0], x[1], x[2], x[3], x[4], r) })
		}
	}
}
