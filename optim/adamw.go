package optim

import (
	"math"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Weights is what the optimizer needs of one parameter: all contiguous and of one shape, F32 but for W, which is in the model's storage type.
type Weights struct{ W, Master, M, V, Grad kernels.Tensor }

// AdamW is Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101) on every parameter, after clipping by the global norm.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
	Clip                           float64 // largest norm of the whole gradient; 0: off
}

// Step updates the weights with rate lr at step (counted from 1), clears the gradients, and returns the gradient's norm before clipping.
// A norm that is not finite leaves everything as it was.
func (a AdamW) Step(r *parallel.Rank, ws []Weights, lr float64, step int) (norm float64) {
	norm = GradNorm(r, ws)
	if math.IsNaN(norm) || math.IsInf(norm, 0) {
		return norm
	}
	scale := 1.0
	if a.Clip > 0 && norm > a.Clip {
		scale = a.Clip / (norm + 1e-6)
	}
	s := kernels.AdamW{
		LR: float32(lr), Beta1: float32(a.Beta1), Beta2: float32(a.Beta2), Eps: float32(a.Eps), WeightDecay: float32(a.WeightDecay),
		Correction1: float32(1 - math.Pow(a.Beta1, float64(step))), Correction2: float32(1 - math.Pow(a.Beta2, float64(step))),
		GradScale: float32(scale),
	}
	for _, w := range ws {
		r.Dev.AdamW(w.W, w.Master, w.M, w.V, w.Grad, s)
	}
	return norm
}

// GradNorm is the square root of the sum of squares: a fixed tree in each tensor on the device, then tensors in order in float64.
func GradNorm(r *parallel.Rank, ws []Weights) float64 {
	defer r.Stack.Release(r.Stack.Mark())
	sums := r.Stack.New(kernels.F32, 1, len(ws))
	for i, w := range ws {
		r.Dev.SumSquares(sums.ColRange(i, i+1), w.Grad)
	}
	total := 0.0
	for _, s := range parallel.Download[float32](r, sums) {
		total += float64(s)
	}
	return math.Sqrt(total)
}
