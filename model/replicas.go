package model

import (
	"fmt"
	"io"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/parallel"
)

// Replicas are the copies of a model on the ranks of a world, by rank: each has all weights, or its part of those that
// are cut over ranks. Of those that are trained each has the optimizer's state of its own shards.
type Replicas []*Model

// Replicate makes copies of the first rank's model on the other ranks of a world. Where experts are cut over them, the
// others stand by for a first rank that works alone.
func Replicate(w *parallel.World, m *Model) (Replicas, error) {
	if w.Size() == 1 {
		return Replicas{m}, nil
	}
	c := make(Replicas, w.Size())
	if err := w.Run(func(r *parallel.Rank) (err error) {
		if c[r.ID] = m; r.ID > 0 {
			c[r.ID], err = m.Replica(r.ID, r.Dev)
		}
		return err
	}); err != nil {
		return nil, err
	}
	if m.ExpertParallel() {
		w.Standby(func(r *parallel.Rank) error {
			c[r.ID].ServeExperts(r)
			return nil
		}, m.ReleaseExperts)
	}
	return c, c.Broadcast(w)
}

// TrainShards gives each replica memory for training; see [Model.TrainShards].
func (c Replicas) TrainShards(w *parallel.World) error {
	if err := w.Run(func(r *parallel.Rank) error {
		c[r.ID].TrainShards(r.ID, r.Size)
		return nil
	}); err != nil {
		return err
	}
	c.shareSums()
	return nil
}

// shareSums tells each replica where the owners of shards sum gradients.
func (c Replicas) shareSums() {
	for _, m := range c {
		for _, u := range m.grads.units {
			for i := range u.owned {
				o := &u.owned[i]
				o.sum = c[o.owner].grads.sums.ColRange(o.atSum, o.atSum+o.columns)
			}
		}
	}
}

// Broadcast copies the first replica's weights to the others, but for those that are cut over ranks.
func (c Replicas) Broadcast(w *parallel.World) error {
	return w.Run(func(r *parallel.Rank) error {
		owned := make([][]kernels.Tensor, r.Size)
		for _, p := range c[r.ID].Params {
			if p.home == nil {
				owned[0] = append(owned[0], p.tensors()...)
			}
		}
		r.Data.Broadcast(owned).Wait()
		return nil
	})
}

// ClearMoments sets the optimizer's moments to 0.
func (c Replicas) ClearMoments() {
	for _, m := range c {
		m.flushStates()
		for _, st := range m.states {
			for _, t := range []kernels.Tensor{st.kept.M, st.kept.V} {
				if st.ring != nil {
					clear(t.Raw())
				} else {
					m.dev.Zero(t)
				}
			}
		}
	}
}

const masterSuffix = ".master"

// stateKinds are the tensors that training adds to a parameter.
var stateKinds = []struct {
	suffix string
	of     func(StateTensors) kernels.Tensor
}{
	{".exp_avg", func(s StateTensors) kernels.Tensor { return s.M }},
	{".exp_avg_sq", func(s StateTensors) kernels.Tensor { return s.V }},
	{masterSuffix, func(s StateTensors) kernels.Tensor { return s.Master }},
}

// optimizerState is a tensor of the optimizer's state of a parameter, in the memory of the ranks that own its shards.
type optimizerState struct {
	name  string
	param *Param
	elements
}

// OptimizerTensors lists the moments, and the fp32 masters where the weights themselves are not fp32.
func (c Replicas) OptimizerTensors() []safetensors.OutTensor {
	var out []safetensors.OutTensor
	for _, o := range c.optimizerStates() {
		w := o.param.W
		out = append(out, safetensors.OutTensor{Name: o.name, DType: "F32",
			Shape: []int{o.param.matrices(), w.Rows, w.Cols}, Write: o.writeTo})
	}
	return out
}

// WriteTrained writes the bytes of what a checkpoint has of a run: the adapters of the model or else its weights, and
// the optimizer's states.
func (c Replicas) WriteTrained(w io.Writer) error {
	tensors := c[0].Tensors
	if c[0].LoRA != nil {
		tensors = c[0].AdapterTensors
	}
	for _, t := range append(tensors(), c.OptimizerTensors()...) {
		if err := t.Write(w); err != nil {
			return err
		}
	}
	return nil
}

// LoadOptimizer reads back what OptimizerTensors wrote, on any number of ranks.
func (c Replicas) LoadOptimizer(from *safetensors.Checkpoint) error {
	states := c.optimizerStates()
	for _, o := range states {
		info, ok := from.Tensor(o.name)
		if n := o.param.Elements(); !ok || info.DType != "F32" || len(info.Data) != n*kernels.F32.Size() {
			return fmt.Errorf("%s: no fp32 tensor %s of %d values: the run was made with another model or other "+
				"trained weights", from.Path(), o.name, n)
		}
		o.write(0, info.Data)
	}
	if len(states) != len(from.Names()) {
		return fmt.Errorf("%s: holds state of weights that this run does not train", from.Path())
	}
	return nil
}

// optimizerStates lists the state of all trained parameters, in the order of the graph.
func (c Replicas) optimizerStates() (list []optimizerState) {
	for _, m := range c {
		m.flushStates()
	}
	shards := c[0].Shards
	for from, to := 0, 0; from < len(shards); from = to {
		p := shards[from].Param
		for to = from; to < len(shards) && shards[to].Param == p; {
			to++
		}
		for _, k := range stateKinds {
			o := optimizerState{name: p.Name + k.suffix, param: p}
			for i := from; i < to; i++ {
				owner := c[shards[i].Owner]
				for _, st := range owner.Shards[i].States {
					if t := k.of(st.kept); t.Data != st.W.Data || st.Q != nil {
						o.elements = append(o.elements, st.on(owner.dev, t))
					}
				}
			}
			if len(o.elements) > 0 {
				list = append(list, o)
			}
		}
	}
	return list
}
