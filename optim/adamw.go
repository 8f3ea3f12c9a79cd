package optim

import (
	"math"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Weights is a parameter, or some matrices of one, with its gradient: contiguous and of one shape. All ranks have W,
// unless it is sharded; the gradient and the optimizer's state are the owner's alone.
type Weights struct {
	Owner   int              // rank
	Sharded bool             // W is the owner's too
	W       kernels.Tensor   // in the model's storage type
	Grad    kernels.Tensor   // F32
	Copies  int              // matrices, the last ones, that are copies of others, of which a norm has one
	Codes   []kernels.Tensor // of weights in codes, of which W is the shape: the codes and scales; nil: W
	States  []State          // of all elements, in order
}

// State is the optimizer's state of consecutive elements of weights, of one shape with the elements and their gradient:
// contiguous, F32 except W.
type State struct {
	W, Master, M, V, Grad kernels.Tensor
	Encode                func() // of weights in codes, makes them of the master; nil: W is numbers
	Use, Done             func() // bring the state to the device, for what is enqueued next, and back; nil: it is there

	Host *HostState // whose cores update the state, which has no Master, M and V on the device; nil: the device does

	ahead bool // the step has been taken, by [Update.Ahead]
}

// update takes the step of the elements, whose gradients are multiplied by factor.
func (st State) update(dev kernels.Device, factor kernels.Tensor, s kernels.AdamW) {
	if st.Host != nil {
		st.Host.finish(dev, st)
		return
	}
	if st.Use != nil {
		st.Use()
	}
	if st.Encode == nil {
		dev.AdamW(st.W, st.Master, st.M, st.V, st.Grad, factor, s)
	} else {
		dev.AdamW(st.Master, st.Master, st.M, st.V, st.Grad, factor, s)
		st.Encode()
	}
	if st.Done != nil {
		st.Done()
	}
}

// here tells whether the state is on the device, of weights that are numbers.
func (st State) here() bool {
	return st.Host == nil && st.Use == nil && st.Done == nil && st.Encode == nil
}

// stored are the weights as they lie on the device.
func (w Weights) stored() []kernels.Tensor {
	if w.Codes == nil {
		return []kernels.Tensor{w.W}
	}
	return w.Codes
}

// AdamW is Adam with decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101) on every parameter, after clipping
// by the global norm.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
	Clip                           float64 // largest global norm of the gradient; 0: off
}

// Step updates the weights by scale times their gradients, with rate lr at step (counted from 1), and clears the
// gradients. It returns the norm of scale times the gradients before clipping, F32 [1, 1] on the rank's stack, without
// waiting for the device. With a norm that is not finite nothing is updated.
func (a AdamW) Step(r *parallel.Rank, ws []Weights, scale, lr float64, step int) (norm kernels.Tensor) {
	clip := r.Stack.New(kernels.F32, 1, 2)
	a.Begin(r, ws, clip, scale, lr, step).Apply(r, ws).Wait()
	return clip.ColRange(0, 1)
}

// Update is a step of [AdamW] that has been begun.
type Update struct {
	factor   kernels.Tensor // F32 [1, 1]: of gradients; not finite: nothing is updated
	settings kernels.AdamW
	onHost   []State // that the host updates, and that are not on their way back
}

// Begin computes the norm of scale times the gradients of all weights of a step and the factor by which they are
// multiplied, clip F32 [1, 2]. Weights are updated by [Update.Apply]; what the host updates begins at once.
func (a AdamW) Begin(r *parallel.Rank, ws []Weights, clip kernels.Tensor, scale, lr float64, step int) *Update {
	r.Dev.ClipScale(clip, squares(r, ws), scale, a.Clip)
	u := &Update{factor: clip.ColRange(1, 2), settings: kernels.AdamW{
		LR: float32(lr), Beta1: float32(a.Beta1), Beta2: float32(a.Beta2), Eps: float32(a.Eps),
		WeightDecay: float32(a.WeightDecay),
		Correction1: float32(1 - math.Pow(a.Beta1, float64(step))),
		Correction2: float32(1 - math.Pow(a.Beta2, float64(step))),
	}}
	u.startHost(r, ws)
	return u
}

// Apply updates some weights of the step and clears their gradients. All ranks apply it to the same weights together:
// each updates what it owns, and begins to copy the rest (ZeRO, Rajbhandari et al., arXiv 1910.02054); nil: there is
// nothing to copy.
func (u *Update) Apply(r *parallel.Rank, ws []Weights) (copied *parallel.Exchange) {
	u.ApplyOwn(r, ws)
	copied = Share(r, ws)
	copied.Unpin()
	return copied
}

// ApplyOwn updates what the rank owns of some weights of the step, and clears their gradients. Other ranks have the
// weights of before until [Share].
func (u *Update) ApplyOwn(r *parallel.Rank, ws []Weights) {
	u.sendBack(r)
	var here []kernels.Moments // one call, as in squares
	for _, w := range ws {
		if w.Owner != r.ID {
			continue
		}
		for i := range w.States {
			switch st := &w.States[i]; {
			case st.ahead:
				st.ahead = false
			case st.here():
				here = append(here, kernels.Moments{W: st.W, Master: st.Master, M: st.M, V: st.V, Grad: st.Grad})
			default:
				st.update(r.Dev, u.factor, u.settings)
			}
		}
	}
	if len(here) > 0 {
		first := here[0]
		r.Dev.AdamW(first.W, first.Master, first.M, first.V, first.Grad, u.factor, u.settings, here[1:]...)
	}
}

// Ahead updates a share of what the rank's device updates of some weights of the step, the first elements, and clears
// their gradients, so that states come and go behind what is enqueued between its calls. [Update.Apply], or ApplyOwn,
// of the same weights updates the rest. Nothing else reads or writes the weights until then.
func (u *Update) Ahead(r *parallel.Rank, ws []Weights, share float64) {
	u.sendBack(r)
	var list []*State
	all, end := 0, 0
	for _, w := range ws {
		for i := range w.States {
			if st := &w.States[i]; w.Owner == r.ID && st.Host == nil {
				list, all = append(list, st), all+st.W.Len()
			}
		}
	}
	for _, st := range list {
		if end += st.W.Len(); float64(end) > share*float64(all) {
			return
		}
		if !st.ahead {
			st.update(r.Dev, u.factor, u.settings)
			st.ahead = true
		}
	}
}

// Share begins to copy weights that all ranks have from their owners, on all ranks together; nil: there are none.
func Share(r *parallel.Rank, ws []Weights) *parallel.Exchange {
	updated := make([][]kernels.Tensor, r.Size)
	for _, w := range ws {
		if !w.Sharded {
			updated[w.Owner] = append(updated[w.Owner], w.stored()...)
		}
	}
	return broadcast(r, updated)
}

// normed is how many matrices count in a norm, the first ones.
func (w Weights) normed() int { return w.W.Groups - w.Copies }

// squares is the sum of squares of each matrix of each gradient that counts, F32 [1, n], in all ranks.
func squares(r *parallel.Rank, ws []Weights) kernels.Tensor {
	at := make([]int, r.Size+1) // the first sum of an owner, in the order of owners
	for _, w := range ws {
		at[w.Owner+1] += w.normed()
	}
	for i := range r.Size {
		at[i+1] += at[i]
	}
	sums, owned := r.Stack.New(kernels.F32, 1, at[r.Size]), make([][]kernels.Tensor, r.Size)
	for i := range owned {
		if at[i] < at[i+1] {
			owned[i] = []kernels.Tensor{sums.ColRange(at[i], at[i+1])}
		}
	}
	var order []int32         // of the graph
	var own []kernels.Squares // one call: of small gradients a launch takes longer than they do
	for _, w := range ws {
		of := sums.ColRange(at[w.Owner], at[w.Owner]+w.normed())
		for range w.normed() {
			order = append(order, int32(at[w.Owner]))
			at[w.Owner]++
		}
		if w.Owner == r.ID && w.normed() > 0 {
			g := w.Grad
			g.Groups = w.normed()
			own = append(own, kernels.Squares{Out: of, T: g})
		}
	}
	if len(own) > 0 {
		r.Dev.SumSquares(own[0].Out, own[0].T, own[1:]...)
	}
	broadcast(r, owned).Wait()
	if slices.IsSorted(order) {
		return sums
	}
	inOrder := r.Stack.New(kernels.F32, len(order), 1)
	r.Dev.Gather(inOrder, sums.Reshape(len(order), 1), parallel.Upload(r, order))
	return inOrder.Reshape(1, len(order))
}

// broadcast begins to copy tensors of owners to the other ranks; nil: there are none, or a plan's rank stands for all.
func broadcast(r *parallel.Rank, owned [][]kernels.Tensor) *parallel.Exchange {
	if r.Size > 1 && r.Data != nil {
		return r.Data.Broadcast(owned)
	}
	bytes := 0
	for owner, list := range owned {
		for _, t := range list {
			if owner != r.ID {
				bytes += t.Bytes()
			}
		}
	}
	kernels.CountExchange(r.Dev, kernels.ExchangeUpdated, bytes)
	return nil
}

// GradNorm is the norm of gradients.
func GradNorm(r *parallel.Rank, ws []Weights) float64 {
	defer r.Stack.Release(r.Stack.Mark())
	norm := r.Stack.New(kernels.F32, 1, 2)
	r.Dev.ClipScale(norm, squares(r, ws), 1, 0)
	return float64(parallel.Download[float32](r, norm)[0])
}
