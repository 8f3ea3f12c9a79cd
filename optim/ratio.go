package optim

import "lockstep/kernels"

// exp is e^x in fp32, from operations that every machine rounds alike. x is cut to [-20, 20]: ratios beyond mean a broken run, and stay finite.
func exp(x float32) float32 {
	b := float32(min(max(x, -20), 20) * kernels.Log2E)
	if b <= 0 {
		return kernels.Exp2(b)
	}
	return 1 / kernels.Exp2(-b)
}

// old is the log-probability that row i's ratio is held against.
func (r Rows) old(i int) float32 {
	if r.Old != nil {
		return r.Old[i]
	}
	return r.Rollout[i]
}

// ratio is exp(lp - old); exactly 1 where they are equal.
func (r Rows) ratio(i int) float32 { return exp(r.LogProb[i] - r.old(i)) }

// importance is min(exp(old - rollout), bound), the weight of a row that was sampled from another distribution than old; 1 where bound is 0 or old is the rollout's.
func (r Rows) importance(i int, bound float32) float32 {
	if bound == 0 || r.Old == nil {
		return 1
	}
	return min(exp(r.Old[i]-r.Rollout[i]), bound)
}
