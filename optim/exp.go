package optim

import "lockstep/kernels"

// Objectives are computed on the host, and every machine must get the same derivatives: e^x is the portable function of
// package kernels whatever the definition of the device, and sums over a sequence are float64 in row order.

// maxLogRatio holds a difference of log-probabilities within +-20 before it is exponentiated, as verl and Fireworks do:
// e^20 is 4.9e8. Beyond it a loss is flat.
const maxLogRatio = 20

// exp is e^x in fp32.
func exp(x float32) float32 { return kernels.Exp2Poly.Exp(x) }

// ratioOf is e^change, with change held within +-maxLogRatio; capped says that it was beyond.
func ratioOf(change float32) (ratio float32, capped bool) {
	held := min(max(change, -maxLogRatio), maxLogRatio)
	return exp(held), held != change
}

// sigmoid is 1 / (1 + e^-x), by the exponential of -|x|.
func sigmoid(x float32) float32 {
	if x >= 0 {
		return 1 / (1 + exp(-x))
	}
	e := exp(x)
	return e / (1 + e)
}

// excess is e^x - 1 - x, 0 or more, of |x| up to maxLogRatio. Near 0, where that difference cancels, it is the series
// x^2/2! + ... + x^14/14!, whose rest is under 2^-52 of it.
func excess(x float64) float64 {
	if x == 0 { // the series' own result, of every token where rollout and trainer agree
		return 0
	}
	if x < -0.5 || x > 0.5 {
		return float64(exp(float32(x))) - 1 - x
	}
	sum := 1.0
	for k := 14.0; k > 2; k-- {
		sum = 1 + float64(sum*x)/k
	}
	return float64(float64(sum*x)*x) / 2
}
