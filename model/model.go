// Package model converts a checkpoint's config.json to a graph of blocks and moves weights between checkpoints and
// devices. A layer kind is a file with Forward and Backward side by side; a family is a file that says how its layers
// are put together. There is one Forward: training passes a packed batch, serving one with a cache. It imports
// parallel, data, quant and kernels.
package model

import (
	"lockstep/data"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// Model is a decoder: embedding, blocks, head.
type Model struct {
	Family    string
	DType     kernels.DType
	Hidden    int
	Vocab     int
	MaxLength int             // of a sequence
	EOS       []int32         // ids that end a text: eos_token_id of config.json and of generation_config.json
	Sampling  data.Generation // of the folder: defaults of generate and serve; zero: none
	Config    []byte          // config.json as read, without what it says of the format that weights were kept in

	Embed   Embedding
	Blocks  []Block
	Head    *Head
	Params  []*Param // in the order of the graph; tied weights once
	LoRA    *peft.Config
	dropout adapterDropout  // of training
	saved   map[*Param]bool // trained and stored with the adapters: modules_to_save
	Shards  []*Shard        // of the trained parameters, those of all ranks

	Indexing IndexerStage // whether indexers of sparse attention are trained
	indexers []*Indexer   // in the order of blocks

	skip func(name string) bool // tensors of a checkpoint that the family does not use; nil: none
	// what transformers, and so PEFT, calls a tensor once it is loaded; nil: as on disk
	inMemory func(name string) string
	kept     *checkpoint.Format // how config.json says that weights are kept; nil: as they are
	choice   quantizedChoice
	encoded  Encode // what projections are put into codes
	ignored  int    // tensors of the checkpoint that are ignored: they say how activations are rounded

	grads   gradients
	states  []*ShardState      // of the rank's shards, in the order in which they are updated
	ring    *parallel.HostRing // of states in the host's memory; nil: they are on the device
	offload Offload

	share func(r *parallel.Rank) // see LeaveShares; nil: all ranks have what they are to have

	headShare headShare // see SendHeadGrad

	deferred *deferredUpdate   // of weights that the next step updates; nil: all are
	copies   []updatedCopy     // of weights that the next step waits for; nil: all are there
	scales   [2]kernels.Tensor // see UpdateScales
	sharded  *shardedWeights   // nil: no weight is copied from other ranks
	stages   []Stage           // of the ranks of a pipeline, first a chunk of each; nil: there is none
	chunks   int               // of blocks that each rank of a pipeline has
	halves   []int             // blocks that are the first half of one of config.json, ascending: see halve
	// rows of a feed-forward that are computed again at a time; 0: those whose inputs take the device's spare memory
	rowsAgain int
	first     *Model // of the first rank, whose weights that are cut over ranks are this one's too; nil: none
	rank      int    // whose model this is, where weights are cut

	dev   kernels.Device // nil: described, not built
	mem   *kernels.Arena
	ops   *operations
	ropes []rotary
}

// ComputeWith makes the model compute with a wrapper of its device, which records operations or breaks a rule. Ranks
// that run the model must have the wrapper too. It must have the optional groups of operations that the model needs.
func (m *Model) ComputeWith(dev kernels.Device) { m.ops.bind(dev) }

// Forward is the last block's output [T, H], before the final norm. s nil: serving.
func (m *Model) Forward(r *parallel.Rank, b *Batch, s *Saved) kernels.Tensor {
	if s == nil {
		m.mustBeUpdated()
	}
	p := &Pass{Batch: b, Saved: s}
	m.forward(r, p)
	return p.X
}

// forward is X of each pass.
func (m *Model) forward(r *parallel.Rank, passes ...*Pass) {
	m.UseEmbedding(r)
	for _, p := range passes {
		p.Prepare(r, m)
		p.X = m.Embed.Forward(r, p.Batch)
	}
	m.blocks().Forward(r, passes...)
}

// Score writes the log-probabilities of each pass. Nothing is kept for a backward pass.
func (m *Model) Score(r *parallel.Rank, passes ...*Pass) {
	m.mustBeUpdated()
	m.forward(r, passes...)
	for _, p := range passes {
		m.Head.LogProb(r, p.LogProb, p.X, p.Targets, p.Batch)
	}
}

// Backward takes D of each pass, the gradient of Forward's output, down to the embedding, as [Stage.Backward] does.
func (m *Model) Backward(r *parallel.Rank, s *Share) {
	if m.ExpertParallel() {
		m.blocks().backward(r, s)
		m.embeddingAtOwner(r, s)
		return
	}
	m.blocks().backward(r, s, unitBackward{embeddingUnit, func(p *Pass) { m.Embed.Backward(r, p.D, p.Batch) }})
}

// TrainForward is Forward as a training step runs it, of which nothing is kept from block to block. With recompute each
// block's output is computed again from its input, as Backward does, and the second result is the one returned.
func (m *Model) TrainForward(r *parallel.Rank, b *Batch, recompute bool) kernels.Tensor {
	m.mustBeUpdated()
	b.Prepare(r, m)
	x := m.Embed.Forward(r, b)
	for i := range m.Blocks {
		keep := &Keep{save: SaveAll}
		if recompute {
			keep.save = 0
		}
		m.sharded.use(r, i, i+1)
		m.blocks().inPlace(r, i, x, b, keep)
	}
	return x
}

// Step runs a share of a step: log-probabilities of the targets are written, weight gradients accumulate for the loss
// and, where indexers are trained, for their loss on the batches. The rank's stacks are left as found.
func (m *Model) Step(r *parallel.Rank, s *Share, policy Policy) {
	defer r.Stack.Release(r.Stack.Mark())
	if m.offload.Activations {
		defer r.Pinned().Release(r.Pinned().Mark())
	}
	for _, p := range s.Passes {
		p.Saved = &Saved{Policy: policy}
		if (m.Indexing != IndexersFrozen) != (p.IndexerLoss != nil) {
			panic("model: a batch has an indexer loss where, and only where, indexers are trained")
		}
	}
	m.grads.begin(r, s, m.ExpertParallel() || s.Dealt || s.Passes[0].Context != nil)
	if m.Indexing == IndexersDense {
		m.forward(r, s.Passes...)
		m.useUnit(r, m.headUnit())
		for _, p := range s.Passes {
			m.Head.LogProb(r, p.LogProb, p.X, p.Targets, p.Batch)
		}
		m.blocks().trainIndexers(r, s)
		m.grads.finishPending(r, s)
		return
	}
	for _, p := range s.Passes { // below what Backward gives back block by block
		p.D = r.Stack.New(m.DType, p.Rows(), m.Hidden)
	}
	m.forward(r, s.Passes...)
	m.useUnit(r, m.headUnit())
	m.grads.during(r, s, unitBackward{m.headUnit(), func(p *Pass) {
		m.Head.Backward(r, p.D, p.LogProb, p.X, p.Targets, p.Loss, p.Batch)
	}})
	m.Backward(r, s)
	m.grads.finishPending(r, s)
}

// Trained is the parameters that receive gradients, in order.
func (m *Model) Trained() []*Param {
	var out []*Param
	for _, p := range m.Params {
		if p.Trained() {
			out = append(out, p)
		}
	}
	return out
}

// Parameters counts all weights and those a token uses (top-k of the experts).
func (m *Model) Parameters() (total, active int) {
	for _, p := range m.Params {
		if !p.Buffer {
			total += p.Elements()
		}
	}
	active = total
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			active -= sub.Layer.Idle()
		}
	}
	return total, active
}
