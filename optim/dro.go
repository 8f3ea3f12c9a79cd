package optim

// DRO is direct reward optimization on rows (Richemond et al., arXiv 2405.19107, as Tinker and verl define it for
// tokens): no ratio, and a quadratic that keeps the policy near the one that sampled:
//
//	L = -(w*A*lp - dro_beta/2 * (lp - old)^2)
//
// The derivative by lp is -w*A + dro_beta*(lp - old). The quadratic is on every row (verl), or with dro_quadratic =
// "advantage" where A is not 0 (Fireworks).
type DRO struct{ policy }

var droDefaults = Settings{DROBeta: 0.05, DROQuadratic: "all", Aggregate: "token", Advantage: "group_mean"}

func newDRO(s Settings) Objective {
	return DRO{newPolicy(s, quadratic{beta: float32(s.DROBeta), gated: s.DROQuadratic == "advantage"})}
}

// quadratic is the term of DRO.
type quadratic struct {
	beta  float32
	gated bool
}

func (q quadratic) slope(x point) (d float32, clipped bool) {
	d = -float32(x.weight * x.advantage)
	if q.pulls(x) {
		d += float32(q.beta * x.change)
	}
	return d, false
}

func (q quadratic) value(x point) float64 {
	v := -float64(float64(float32(x.weight*x.advantage)) * float64(x.logprob))
	if q.pulls(x) {
		v += float64(float64(q.beta) * float64(float64(x.change)*float64(x.change)/2))
	}
	return v
}

func (q quadratic) pulls(x point) bool { return !q.gated || x.advantage != 0 }
