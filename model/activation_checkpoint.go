package model

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Save is a set of results that a block's Forward keeps for Backward, which computes the others again from the block's
// input (selective activation checkpointing: Korthikanti et al., arXiv 2205.05198). What is computed again has the same
// bits, so no policy changes a gradient.
type Save uint8

const (
	SaveProjections Save = 1 << iota // products that enter attention or a recurrence
	SaveAttention                    // outputs of attention with their log-sums, and of recurrences
	// residual sums between sublayers: the product that ends a sublayer does not run again
	SaveResidual
	SaveGateUp // products that enter the activation of a feed-forward
	// outputs of experts before they are combined, and of a shared expert before its gate
	SaveExperts
	SaveAll // every tensor: nothing runs again

	// layerOutput is what a layer returns. A policy does not name it: the second Forward leaves it out where the next
	// residual sum is kept or has no reader.
	layerOutput
)

// Policy is what each block keeps; nil: everything.
type Policy []Save

// Everywhere is the policy that keeps the same results of every block.
func (m *Model) Everywhere(s Save) Policy {
	p := make(Policy, len(m.Blocks))
	for i := range p {
		p[i] = s
	}
	return p
}

// of is what block i keeps.
func (p Policy) of(i int) Save {
	if p == nil {
		return SaveAll
	}
	return p[i]
}

// Keep is what Forward of a block keeps for Backward; nil: nothing, as in serving. A block that is computed again has
// two Forwards with one Keep: the first writes the tensors in it, the second finds them there.
type Keep struct {
	save     Save
	again    bool // the second Forward
	dropout  *Dropout
	noOutput bool // of the layer at hand: its output has no reader
	tensors  map[Save][]kernels.Tensor
	next     map[Save]int // the next of them that Forward comes to
	counts   [][]int32    // of each mixture's rows, where experts are cut over ranks
}

// reserve takes memory for the results that are kept of the block. It must lie below what Forward releases.
func (k *Keep) reserve(r *parallel.Rank, bl Block, x kernels.Tensor) {
	k.tensors, k.next = map[Save][]kernels.Tensor{}, map[Save]int{}
	for _, res := range bl.work(x.DType, x.Cols, Extent{Rows: x.Rows}).results {
		if k.save&res.save == 0 {
			continue
		}
		for _, t := range res.tensors {
			k.tensors[res.save] = append(k.tensors[res.save], r.Stack.New(t.dtype, t.rows, t.cols))
		}
	}
}

// rerun is the Keep of the second Forward.
func (k *Keep) rerun() *Keep {
	return &Keep{save: k.save, again: true, dropout: k.dropout, tensors: k.tensors, next: map[Save]int{},
		counts: k.counts}
}

// leaveOut says whether the next layer may leave out its output. Serving, which keeps nothing, reads every output.
func (k *Keep) leaveOut(output bool) {
	if k != nil {
		k.noOutput = output
	}
}

// counted gives the counts of the next mixture's rows. The first Forward begins to read them from the device.
func (k *Keep) counted(begin func() (read func() []int32)) func() []int32 {
	if k != nil && k.again {
		counts := k.counts[0]
		k.counts = k.counts[1:]
		return func() []int32 { return counts }
	}
	read := begin()
	return func() []int32 {
		counts := read()
		if k != nil {
			k.counts = append(k.counts, counts)
		}
		return counts
	}
}

// saves tells whether what Backward reads stays on the stack.
func (k *Keep) saves() bool { return k != nil && (k.again || k.save == SaveAll) }

// done tells whether a result need not be computed: it is kept from the first Forward, or nothing reads it.
func (k *Keep) done(s Save) bool {
	switch {
	case k == nil || !k.again:
		return false
	case s == layerOutput:
		return k.noOutput
	}
	return k.save&s != 0
}

// tensor is [rows, cols] for a result. Where done, it holds the result already. An output that nothing reads is the
// zero Tensor.
func (k *Keep) tensor(r *parallel.Rank, s Save, d kernels.DType, rows, cols int) (t kernels.Tensor, done bool) {
	done = k.done(s)
	switch {
	case s == layerOutput && done:
		return kernels.Tensor{}, true
	case k == nil || k.save&s == 0:
		return r.Stack.New(d, rows, cols), false
	}
	return k.pop(s, d, rows, cols), done
}

// residual is the tensor of the sum after a sublayer; the zero Tensor where it is not kept.
func (k *Keep) residual(r *parallel.Rank, x kernels.Tensor) (sum kernels.Tensor, done bool) {
	if k == nil || k.save&SaveResidual == 0 {
		return kernels.Tensor{}, false
	}
	return k.tensor(r, SaveResidual, x.DType, x.Rows, x.Cols)
}

// pop is the next kept tensor of a result.
func (k *Keep) pop(s Save, d kernels.DType, rows, cols int) kernels.Tensor {
	t := k.tensors[s][k.next[s]]
	k.next[s]++
	if !k.again && (t.DType != d || t.Rows != rows || t.Cols != cols) {
		panic(fmt.Sprintf("model: kept %s, and the layer computes %s[%d, %d]", t, d, rows, cols))
	}
	return t
}
