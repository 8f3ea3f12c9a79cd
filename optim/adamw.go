package optim

import (
	"math"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Weights is a parameter, or some matrices of one, with gradient and optimizer state: all contiguous and of one shape,
// F32 except W, which has the model's storage type. All ranks have W; the others are the owner's alone.
type Weights struct {
	Owner                 int // rank
	W, Master, M, V, Grad kernels.Tensor
}

// AdamW is Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101) on every parameter, after clipping
// by the global norm.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
	Clip                           float64 // largest global norm of the gradient; 0: off
}

// Step updates the weights by scale times their gradients, with rate lr at step (counted from 1), and clears the
// gradients. It returns the norm of scale times the gradients before clipping, F32 [1, 1] on the rank's stack, without
// waiting for the device. With a norm that is not finite nothing is updated. All ranks take the step together: each
// updates what it owns, and copies the rest (ZeRO, Rajbhandari et al., arXiv 1910.02054).
func (a AdamW) Step(r *parallel.Rank, ws []Weights, scale, lr float64, step int) (norm kernels.Tensor) {
	clip := r.Stack.New(kernels.F32, 1, 2)
	r.Dev.ClipScale(clip, squares(r, ws), scale, a.Clip)
	s := kernels.AdamW{
		LR: float32(lr), Beta1: float32(a.Beta1), Beta2: float32(a.Beta2), Eps: float32(a.Eps),
		WeightDecay: float32(a.WeightDecay),
		Correction1: float32(1 - math.Pow(a.Beta1, float64(step))),
		Correction2: float32(1 - math.Pow(a.Beta2, float64(step))),
	}
	updated := make([][]kernels.Tensor, r.Size)
	for _, w := range ws {
		updated[w.Owner] = append(updated[w.Owner], w.W)
		if w.Owner == r.ID {
			r.Dev.AdamW(w.W, w.Master, w.M, w.V, w.Grad, clip.ColRange(1, 2), s)
		}
	}
	broadcast(r, updated)
	return clip.ColRange(0, 1)
}

// squares is the sum of squares of each matrix of each gradient, F32 [1, n], in all ranks.
func squares(r *parallel.Rank, ws []Weights) kernels.Tensor {
	n := 0
	for _, w := range ws {
		n += w.W.Groups
	}
	sums, at, owned := r.Stack.New(kernels.F32, 1, n), 0, make([][]kernels.Tensor, r.Size)
	for _, w := range ws {
		of := sums.ColRange(at, at+w.W.Groups)
		if at += w.W.Groups; w.Owner == r.ID {
			r.Dev.SumSquares(of, w.Grad)
		}
		if o := owned[w.Owner]; len(o) > 0 { // an owner's are one after the other
			o[0].Cols += of.Cols
		} else {
			owned[w.Owner] = append(o, of)
		}
	}
	broadcast(r, owned)
	return sums
}

// broadcast copies tensors of owners to the other ranks, if there are any: a plan's rank stands for all.
func broadcast(r *parallel.Rank, owned [][]kernels.Tensor) {
	if r.Size > 1 && r.Data != nil {
		r.Data.Broadcast(owned).Wait()
	}
}

// GradNorm is the norm of gradients.
func GradNorm(r *parallel.Rank, ws []Weights) float64 {
	defer r.Stack.Release(r.Stack.Mark())
	norm := r.Stack.New(kernels.F32, 1, 2)
	r.Dev.ClipScale(norm, squares(r, ws), 1, 0)
	return float64(parallel.Download[float32](r, norm)[0])
}
