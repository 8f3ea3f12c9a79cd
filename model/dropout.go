package model

import (
	"fmt"
	"strings"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Dropout is what the inputs of adapters lose in rows of a training step, as in PEFT: y += Scale * (drop(x) A^T) B^T
// with a mask for each adapter. A mask is drawn by (seed, step, row of the step, adapter, column), so it is the same
// for any micro-batch, recomputation, ranks and device, and where a run is resumed.
type Dropout struct{ of kernels.Dropout }

// adapterDropout is what training drops of the inputs of a model's adapters.
type adapterDropout struct {
	probability float64
	seed        uint64
}

// SetDropout sets the probability by which training drops elements of the inputs of adapters; see [Model.DropoutAt].
// Adapters that PEFT cannot train with dropout are errors.
func (m *Model) SetDropout(probability float64, seed uint64) error {
	for _, l := range m.linears() {
		for _, s := range l.Subs {
			switch {
			case s.LoRA == nil || probability == 0:
			case l.Fused:
				return fmt.Errorf("lora.dropout: %s is a weight of experts, on whose adapters PEFT has no dropout: "+
					"set lora.dropout = 0, or lora.targets to modules outside experts: %s", s.Module,
					strings.Join(m.OutsideExperts(), ", "))
			case l.byHead:
				return fmt.Errorf("lora.dropout: %s is read as a matrix for each head by definition.latent = "+
					`"absorbed": not supported, set "expanded" or leave it out of lora.targets`, s.Module)
			}
		}
	}
	m.dropout = adapterDropout{probability, seed}
	return nil
}

// DropoutAt is that of a micro-batch that begins with a row of a step, both counted over all ranks; nil: the model has
// none.
func (m *Model) DropoutAt(step, row int) *Dropout {
	if m.dropout.probability == 0 {
		return nil
	}
	return &Dropout{kernels.Dropout{Probability: float32(m.dropout.probability), Seed: m.dropout.seed,
		Step: uint32(step), Row: uint32(row)}}
}

// drops is the dropout of a Forward; nil: none.
func (k *Keep) drops() *Dropout {
	if k == nil {
		return nil
	}
	return k.dropout
}

// drop writes what adapter a reads of x, or the gradient of x from that of what it read.
func (d *Dropout) drop(r *parallel.Rank, out, x kernels.Tensor, a *LoRA) {
	of := d.of
	of.Layer = a.layer
	r.Dev.Dropout(out, x, of)
}

// eachDropped visits what each adapter reads of x [T, K].
func (l *Linear) eachDropped(r *parallel.Rank, x kernels.Tensor, d *Dropout, visit func(a adapter, x kernels.Tensor)) {
	defer r.Stack.Release(r.Stack.Mark())
	own := r.Stack.New(x.DType, x.Rows, x.Cols)
	for _, a := range l.adapters() {
		d.drop(r, own, x, a.LoRA)
		visit(a, own)
	}
}

// addDropped adds the adapters' parts of the gradient of x, one after the other: dx = round(dx + drop(round(du A))).
func (l *Linear) addDropped(r *parallel.Rank, dx, du kernels.Tensor, d *Dropout) {
	defer r.Stack.Release(r.Stack.Mark())
	part := r.Stack.New(dx.DType, dx.Rows, dx.Cols)
	for _, a := range l.adapters() {
		r.Dev.MatMulT(part, nil, kernels.Term{X: du.ColRange(a.from, a.to), W: a.LoRA.A.W})
		d.drop(r, part, part, a.LoRA)
		r.Dev.Add(dx, dx, part)
	}
}

// numberAdapters gives each adapter a number of its own, in the order of the graph.
func (m *Model) numberAdapters() {
	next := uint32(0)
	for _, l := range m.linears() {
		for _, a := range l.adapters() {
			a.LoRA.layer = next
			next++
		}
	}
}
