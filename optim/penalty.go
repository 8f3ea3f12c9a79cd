package optim

// penalty is the divergence of the policy from a frozen reference, estimated on sampled rows as a loss that is
// differentiated (Schulman, "Approximating KL divergence", 2020). With x = reference - lp:
//
//	k1   -x              derivative by lp: 1
//	k2   x^2 / 2         -x
//	k3   e^x - 1 - x     1 - e^x, with x held within +-maxLogRatio and flat beyond
//
// The expected gradient of k1 is 0 on rows that the policy sampled: it is there for parity. That of k2 is the
// divergence's.
type penalty struct {
	coef      float32
	estimator string
}

// slope is coef times the derivative by lp.
func (p penalty) slope(lp, reference float32) float32 {
	x := reference - lp
	switch p.estimator {
	case "k1":
		return p.coef
	case "k2":
		return -float32(p.coef * x)
	}
	r, capped := ratioOf(x)
	if capped {
		return 0
	}
	return float32(p.coef * (1 - r))
}

// value is the estimate, without coef; k3 where no estimator was asked for.
func (p penalty) value(lp, reference float32) float64 {
	x := float64(reference - lp)
	switch p.estimator {
	case "k1":
		return -x
	case "k2":
		return float64(x*x) / 2
	}
	return excess(min(max(x, -maxLogRatio), maxLogRatio))
}
