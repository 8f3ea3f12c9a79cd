package model

import (
	"bytes"
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
)

// shareFactors lets the experts of each layer share one factor of their adapters: A of what reads the residual stream,
// B of what writes it. The other factor is each expert's own. This is what Tinker trains and SGLang serves
// ("shared outer", --experts-shared-outer-loras). PEFT has no form for it, nor is one needed to read it: each expert
// has a copy, in memory as in a folder, and a step adds the gradients of all copies before it updates each alike.
// Products, exchanges and folders are therefore those of factors each, and so is the memory.
func (m *Model) shareFactors() error {
	found := false
	for _, l := range m.mixtures() {
		for _, s := range l.Experts.GateUp.Subs {
			if s.LoRA != nil {
				s.LoRA.A.share()
				found = true
			}
		}
		for _, s := range l.Experts.Down.Subs {
			if s.LoRA != nil {
				s.LoRA.B.share()
				found = true
			}
		}
	}
	if !found {
		return fmt.Errorf(`lora: factors of experts are to be shared, and none has an adapter: name targets such as ` +
			`"gate_proj", "up_proj", "down_proj", or leave experts = "each"`)
	}
	return nil
}

// share makes copies of one weight of the parameter's matrices.
func (p *Param) share() { p.copies, p.Init.Period = true, p.W.Rows*p.W.Cols }

// checkShared is an error where copies of one weight differ.
func (m *Model) checkShared() error {
	for _, p := range m.Params {
		if !p.copies || kernels.IsMeta(m.dev) {
			continue
		}
		raw := make([]byte, p.Elements()*p.W.DType.Size())
		p.weight(m.dev).read(raw, 0)
		each := len(raw) / p.matrices()
		for e := 1; e < p.matrices(); e++ {
			if !bytes.Equal(raw[:each], raw[e*each:][:each]) {
				return fmt.Errorf("%s is to be one for all experts, and those of experts 0 and %d differ: "+
					"the adapter is damaged, or its experts have factors each", m.peftName(p.Parts[0].Name), e)
			}
		}
	}
	return nil
}

// sumShared makes the gradient of each copy of a shared factor the sum over all, in the order of experts. Of a rank's
// experts alone, the others' gradients are brought to it first.
func (m *Model) sumShared(r *parallel.Rank) {
	for i := 0; i < len(m.Shards); i++ {
		s := m.Shards[i]
		if !s.Param.copies {
			continue
		}
		if !s.Sharded {
			if s.Owner == r.ID {
				sumCopies(r, s.Grad, s.Grad)
			}
			continue
		}
		first := i
		for i+1 < len(m.Shards) && m.Shards[i+1].Param == s.Param {
			i++
		}
		m.sumSplit(r, m.Shards[first:i+1])
	}
}

// sumSplit is sumShared of a factor whose copies lie with the experts of several ranks.
func (m *Model) sumSplit(r *parallel.Rank, shards []*Shard) {
	defer r.Stack.Release(r.Stack.Mark())
	p, own := shards[0].Param, kernels.Tensor{}
	all := r.Stack.NewGrouped(kernels.F32, p.matrices(), p.W.Rows, p.W.Cols)
	parts, at := make([][]kernels.Tensor, r.Size), 0
	for _, s := range shards {
		part := matricesOf(all, at, s.W.Groups)
		at += s.W.Groups
		parts[s.Owner] = append(parts[s.Owner], part)
		if s.Owner == r.ID {
			own = s.Grad
			r.Dev.Copy(part, own)
		}
	}
	if r.Data == nil { // a plan
		kernels.CountExchange(r.Dev, kernels.ExchangeGradient, all.Bytes()-own.Bytes())
	} else {
		r.Data.Broadcast(parts).Wait()
	}
	sumCopies(r, own, all)
}

// sumCopies makes every matrix of a gradient the sum of all those of parts, which it may be itself.
func sumCopies(r *parallel.Rank, grad, parts kernels.Tensor) {
	n := parts.Rows * parts.Cols
	sum, rest := parts.Reshape(parts.Groups, n).RowRange(0, 1), parts.Reshape(parts.Groups, n).RowRange(1, parts.Groups)
	if rest.Rows > 0 {
		r.Dev.Accumulate(sum, rest)
	}
	copies := grad.Reshape(grad.Groups, n)
	if copies.Data != sum.Data {
		r.Dev.Copy(copies.RowRange(0, 1), sum)
	}
	for done := 1; done < copies.Rows; {
		more := min(done, copies.Rows-done)
		r.Dev.Copy(copies.RowRange(done, done+more), copies.RowRange(0, more))
		done += more
	}
}
