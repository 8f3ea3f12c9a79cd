package optim

// referenceKL is coef times an estimator of KL(policy || reference) of a row (Schulman, "Approximating KL divergence", 2020); with x = reference - lp:
//
//	k1 = -x            d = 1
//	k2 = x*x/2         d = -x
//	k3 = e^x - x - 1   d = 1 - e^x
type referenceKL struct {
	coef      float32
	estimator string
}

func newReferenceKL(s Settings) referenceKL { return referenceKL{float32(s.KLCoef), s.KLEstimator} }

// derivative is that of the weighted estimator by lp; 0 without a coefficient.
func (k referenceKL) derivative(rows Rows, i int) float32 {
	if k.coef == 0 {
		return 0
	}
	x := rows.Reference[i] - rows.LogProb[i]
	w := float32(rows.Weight[i] * k.coef)
	switch k.estimator {
	case "k1":
		return w
	case "k2":
		return -float32(w * x)
	}
	return float32(w * (1 - exp(x)))
}

func (k referenceKL) value(rows Rows, i int) float64 {
	if k.coef == 0 {
		return 0
	}
	x := rows.Reference[i] - rows.LogProb[i]
	w := float64(rows.Weight[i] * k.coef)
	switch k.estimator {
	case "k1":
		return -w * float64(x)
	case "k2":
		return w * float64(x) * float64(x) / 2
	}
	return w * (float64(exp(x)) - float64(x) - 1)
}
