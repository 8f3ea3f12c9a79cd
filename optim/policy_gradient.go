package optim

// PolicyGradient is REINFORCE (Williams 1992) with importance sampling, for rows that were sampled under weights that
// have changed since:
//
//	L = -w * r * A,  r = e^(lp - old)
//
// The derivative by lp is -w*r*A. r is not bounded but for the cap on its logarithm (maxLogRatio).
type PolicyGradient struct{ policy }

var policyGradientDefaults = Settings{Aggregate: "token", Advantage: "group_mean"}

func newPolicyGradient(s Settings) Objective { return PolicyGradient{newPolicy(s, reinforce{})} }

// reinforce is the term of PolicyGradient.
type reinforce struct{}

func (reinforce) slope(x point) (d float32, clipped bool) {
	if x.capped && x.advantage != 0 {
		return 0, true
	}
	return -float32(x.weight * float32(x.ratio*x.advantage)), false
}

func (reinforce) value(x point) float64 {
	return -float64(float64(x.weight) * float64(float64(x.ratio)*float64(x.advantage)))
}
