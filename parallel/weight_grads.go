package parallel

import "lockstep/kernels"

// WeightGrads are gradients of weights that a backward pass has put off, so that the gradient of its input is there
// sooner (Qi et al., arXiv 2401.10241). What the pass overwrites or releases they have copies of, in an arena of their
// own: dy where it was not taken from there, x where forward has not kept it.
type WeightGrads struct {
	Copies *kernels.Arena
	empty  kernels.Mark
	kept   kernels.Mark // of the rank's stack: what lies below it stays until Compute
	list   []weightGrad
}

// weightGrad is the operands of [kernels.Device.WeightGrad].
type weightGrad struct {
	dw, dy, x kernels.Tensor
	rows      kernels.Groups
}

// PutOff runs a backward pass whose gradients of weights are put off. What lies on the rank's stack now must stay as it
// is until they have been computed.
func (r *Rank) PutOff(copies *kernels.Arena, backward func()) *WeightGrads {
	r.putOff = &WeightGrads{Copies: copies, empty: copies.Mark(), kept: r.Stack.Mark()}
	defer func() { r.putOff = nil }()
	backward()
	return r.putOff
}

// GradStack is where a backward pass takes memory for a dy that it does not overwrite: the stack, or where gradients
// are put off their arena, so that they need no copy.
func (r *Rank) GradStack() *kernels.Arena {
	if r.putOff != nil {
		return r.putOff.Copies
	}
	return r.Stack
}

// PutsOff tells whether gradients of weights are put off, so that what forward has kept is not to be released.
func (r *Rank) PutsOff() bool { return r.putOff != nil }

// WeightGrad is that of the device, or put off. Of one weight either all come here or none, in the order of packs.
func (r *Rank) WeightGrad(dw, dy, x kernels.Tensor, rows *kernels.Groups, then ...kernels.GradRows) {
	if r.putOff == nil {
		r.Dev.WeightGrad(dw, dy, x, rows, then...)
		return
	}
	r.putOff.add(r, dw, dy, x, rows)
	for _, p := range then {
		r.putOff.add(r, dw, p.DY, p.X, p.Groups)
	}
}

// add puts a gradient off.
func (w *WeightGrads) add(r *Rank, dw, dy, x kernels.Tensor, rows *kernels.Groups) {
	of := weightGrad{dw: dw, dy: dy, x: x, rows: *rows}
	if !w.Copies.Below(w.Copies.Mark(), dy) {
		of.dy = w.copy(r, dy)
	}
	for _, t := range []*kernels.Tensor{&of.x, &of.rows.Offsets} {
		if !t.IsNil() && !r.Stack.Below(w.kept, *t) {
			*t = w.copy(r, *t)
		}
	}
	w.list = append(w.list, of)
}

func (w *WeightGrads) copy(r *Rank, t kernels.Tensor) kernels.Tensor {
	own := w.Copies.NewGrouped(t.DType, t.Groups, t.Rows, t.Cols)
	r.Dev.Copy(own, t)
	return own
}

// Compute adds the gradients in the order in which they were put off, and empties their arena.
func (w *WeightGrads) Compute(r *Rank) {
	for _, of := range w.list {
		r.Dev.WeightGrad(of.dw, of.dy, of.x, &of.rows)
	}
	w.Copies.Release(w.empty)
}
