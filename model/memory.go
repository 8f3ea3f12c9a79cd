package model

import "lockstep/kernels"

// Memory is what a model keeps on its device whatever the batch, in bytes. Activations come on top.
type Memory struct {
	Weights  int // as stored
	Training int // gradients, moments and masters of what is trained
	Token    int // of the cache, for each position of a sequence in flight
	Sequence int // of the cache, for each sequence in flight whatever its length
}

// Memory counts by shapes: a described model has one too. Of a model with adapters, these alone are trained.
func (m *Model) Memory() Memory {
	var n Memory
	for _, p := range m.Params {
		n.Weights += p.W.Bytes()
	}
	for _, p := range m.learned() {
		n.Training += p.Elements() * p.states(m.tied(p)) * kernels.F32.Size()
	}
	n.Token, n.Sequence = m.CacheBytes(1)
	return n
}

// learned is the parameters that training changes: all but buffers, or the adapters alone.
func (m *Model) learned() []*Param {
	adapter := m.adapterParams()
	var out []*Param
	for _, p := range m.Params {
		if !p.Buffer && (m.LoRA == nil || adapter[p]) {
			out = append(out, p)
		}
	}
	return out
}

// tied tells whether the parameter is both embedding and head.
func (m *Model) tied(p *Param) bool { return p == m.Embed && p == m.Head.W }
