package model

import (
	"iter"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// Embedding is the first stage of a model: the table [V, H] of token embeddings.
type Embedding struct{ *Param }

// Forward is the rows of the batch's tokens, [T, H].
func (e Embedding) Forward(r *parallel.Rank, b *Batch) kernels.Tensor {
	x := r.Stack.New(e.W.DType, b.Rows(), e.W.Cols)
	r.Dev.Embed(x, e.W, b.IDs)
	return x
}

// Backward accumulates the table's gradient from d, the gradient of Forward's output.
func (e Embedding) Backward(r *parallel.Rank, d kernels.Tensor, b *Batch) {
	if !e.Trained() {
		return
	}
	if !b.apart() {
		r.Dev.EmbedBackward(e.Grad, d, b.IDs, b.Layout.Segments)
		return
	}
	b.eachSegment(func(i, from, to int) {
		r.Dev.EmbedBackward(e.Grad.Group(i), d.RowRange(from, to), b.IDs.ColRange(from, to),
			[]int32{0, int32(to - from)})
	})
}

// embeddingAtOwner is the embedding's backward of a share where experts are cut over ranks, which are all here with as
// many passes. The rank that sums the table's gradient gets the rows of the others and adds each pass of each rank, in
// order: they are fewer bytes than the table's sums, most of which a pass does not change.
func (m *Model) embeddingAtOwner(r *parallel.Rank, s *Share) {
	for _, shard := range m.Shards {
		if shard.Param == m.Embed.Param {
			for i, p := range s.Passes {
				if i > 0 {
					r.Yield() // the other lanes add a pass before this one adds its next
				}
				m.passAtOwner(r, p, shard.Owner, func() { m.grads.finishPending(r, s) })
			}
		}
	}
}

// passAtOwner is embeddingAtOwner of a pass. It calls meanwhile when the rows are on their way.
func (m *Model) passAtOwner(r *parallel.Rank, p *Pass, owner int, meanwhile func()) {
	defer r.Stack.Release(r.Stack.Mark())
	ranks := p.segmentsOfRanks(r)
	in, out, at := make([]int, len(ranks)), make([]int, len(ranks)), make([]int, len(ranks))
	come := 0
	for rank, segments := range ranks {
		switch n := int(segments[len(segments)-1]); {
		case r.ID == owner && rank != owner:
			in[rank], at[rank] = n, come
			come += n
		case r.ID == rank && rank != owner:
			out[owner] = n
		}
	}
	d, ids := r.Stack.New(m.DType, come, m.Hidden), r.Stack.New(kernels.I32, come, 1)
	var coming *parallel.Exchange
	if r.Data == nil { // a plan
		kernels.CountExchange(r.Dev, kernels.ExchangeGradient, d.Bytes()+ids.Bytes())
	} else {
		coming = r.Data.Scatter(at, in, out, parallel.Pair{Dst: d, Src: p.D},
			parallel.Pair{Dst: ids, Src: p.IDs.Reshape(p.Rows(), 1)})
	}
	meanwhile()
	for rank, segments := range ranks {
		own, of := p.D, p.IDs
		if rank != r.ID {
			coming.Wait()
			coming = nil
			end := at[rank] + in[rank]
			own, of = d.RowRange(at[rank], end), ids.RowRange(at[rank], end).Reshape(1, in[rank])
		}
		if r.ID == owner {
			r.Dev.EmbedBackward(m.Embed.Grad, own, of, segments)
		}
	}
}

// segmentsOfRanks is the row offsets of the segments of each rank's pass.
func (p *Pass) segmentsOfRanks(r *parallel.Rank) [][]int32 {
	if r.Data == nil { // a plan: every rank has as many
		return slices.Repeat([][]int32{p.Layout.Segments}, r.Size)
	}
	return r.Data.ShareNumbers(p.Layout.Segments)
}

// Stage is blocks [From, To) of a model, between [Embedding] and [Head].
type Stage struct {
	From, To int
	model    *Model
}

// Stage is blocks [from, to).
func (m *Model) Stage(from, to int) Stage { return Stage{From: from, To: to, model: m} }

// blocks is the stage of all blocks.
func (m *Model) blocks() Stage { return m.Stage(0, len(m.Blocks)) }

// PipelineStages are the chunks of blocks that a rank of a pipeline has. The first rank has the embedding too, the last
// one the head.
func (m *Model) PipelineStages(rank int) (chunks []Stage) {
	for i := rank; i < len(m.stages); i += m.Stages() {
		chunks = append(chunks, m.stages[i])
	}
	return chunks
}

// Stages is how many ranks each compute some blocks of a step alone; 0: there is no pipeline.
func (m *Model) Stages() int { return len(m.stages) / max(m.chunks, 1) }

// stageRank is the rank of a pipeline that computes a unit.
func (m *Model) stageRank(unit int) int {
	at := 0
	for at < len(m.stages)-1 && unit >= blockUnit(m.stages[at].To) {
		at++
	}
	return at % m.Stages()
}

// First and Last tell whether the stage begins with the embedding, and whether it ends with the head.
func (st Stage) First() bool { return st.From == 0 }
func (st Stage) Last() bool  { return st.To == len(st.model.Blocks) }

// StepForward takes a pass of a step through the stage of a pipeline: X is the input of all but the first, and then the
// output. D is room for its gradient, from the stack, below what is kept.
func (st Stage) StepForward(r *parallel.Rank, p *Pass, policy Policy) {
	p.Saved = &Saved{Policy: policy}
	p.Prepare(r, st.model)
	if st.First() {
		st.model.UseEmbedding(r)
		p.X = st.model.Embed.Forward(r, p.Batch)
	}
	st.Forward(r, p)
}

// StepBackward takes D back through the stage. The last one makes it of the targets, and writes log-probabilities.
// Weight gradients accumulate: passes come in the order of packs.
func (st Stage) StepBackward(r *parallel.Rank, p *Pass) {
	m := st.model
	if st.Last() {
		m.Head.Backward(r, p.D, p.LogProb, p.X, p.Targets, p.Loss, p.Batch)
	}
	st.Backward(r, &Share{Passes: []*Pass{p}})
	if st.First() {
		m.Embed.Backward(r, p.D, p.Batch)
	}
}

// Saved is what Forward of a stage keeps: of each block its input and what the policy says of its inside.
type Saved struct {
	Policy  Policy
	blocks  []keptBlock            // of the stage
	offload *parallel.OffloadStack // inputs of blocks, where the host has them; nil: it has none
}

// keptBlock is what is kept of a block.
type keptBlock struct {
	mark  kernels.Mark   // below all that is kept
	input kernels.Tensor // where it does not go to the host's memory
	inner BlockSaved     // of a block that keeps everything
	keep  *Keep
}

// up visits the blocks in order. The weights of each are there, and those of the next are on their way.
func (st Stage) up(r *parallel.Rank) iter.Seq[int] {
	return func(visit func(int) bool) {
		for i := st.From; i < st.To; i++ {
			st.model.useBlock(r, i)
			st.model.sharded.use(r, i, i+1)
			if !visit(i) {
				return
			}
		}
	}
}

// down visits the blocks from the last to the first. The weights of each are there.
func (st Stage) down(r *parallel.Rank) iter.Seq[int] {
	return func(visit func(int) bool) {
		for i := st.To - 1; i >= st.From; i-- {
			st.model.sharded.use(r, i, i-1)
			if !visit(i) {
				return
			}
		}
	}
}

// Forward replaces X of each pass, the first block's input, by the last one's output. All pass a block before the next
// block's weights are asked for, and between them the next unit is updated where that is left to them. What serves
// (Saved nil) is overwritten.
func (st Stage) Forward(r *parallel.Rank, passes ...*Pass) {
	for i := range st.up(r) {
		for k, p := range passes {
			st.forward(r, i, p)
			st.model.updateAhead(r, k+1, len(passes))
		}
	}
}

// forward computes block i.
func (st Stage) forward(r *parallel.Rank, i int, p *Pass) {
	x, s := p.X, p.Saved
	if s == nil {
		st.inPlace(r, i, x, p.Batch, nil)
		return
	}
	st.sendInput(r, i, x, s)
	kept := keptBlock{mark: r.Stack.Mark(), input: x, keep: &Keep{save: s.Policy.of(i), dropout: p.Dropout}}
	p.X = st.output(r, i, x, s)
	kept.inner = st.model.Blocks[i].Forward(r, p.X, x, p.Batch, kept.keep)
	s.blocks = append(s.blocks, kept)
}

// offloads tells whether the input of block i goes to the host's memory. Of a block that keeps everything, the norm
// keeps the input too.
func (st Stage) offloads(i int, s *Saved) bool {
	return st.model.offload.Activations && i < st.To && s.Policy.of(i) != SaveAll
}

// sendInput begins to copy the input of block i to the host's memory, where it is to go there.
func (st Stage) sendInput(r *parallel.Rank, i int, x kernels.Tensor, s *Saved) {
	switch {
	case !st.offloads(i, s):
	case s.offload != nil:
		s.offload.Push()
	default: // the slots are released with what is below block i
		depth := 0
		for k := i; k < st.To; k++ {
			if st.offloads(k, s) {
				depth++
			}
		}
		s.offload = parallel.NewOffloadStack(r, x, depth)
	}
}

// output is memory for the output of block i: that of the next input which goes to the host, or of the stack.
func (st Stage) output(r *parallel.Rank, i int, x kernels.Tensor, s *Saved) kernels.Tensor {
	if s.offload != nil && st.offloads(i+1, s) {
		return s.offload.Next()
	}
	return r.Stack.New(x.DType, x.Rows, x.Cols)
}

// inPlace replaces x by the output of block i and keeps nothing. A block that keeps less than everything is
// computed twice, as for a backward pass, and the second result is the one written. Where nothing is kept inside the
// block either (k nil), its last sum is written over x, which has no reader by then.
func (st Stage) inPlace(r *parallel.Rank, i int, x kernels.Tensor, b *Batch, k *Keep) {
	defer r.Stack.Release(r.Stack.Mark())
	bl := st.model.Blocks[i]
	if k == nil {
		bl.Forward(r, x, x, b, nil)
		return
	}
	y := r.Stack.New(x.DType, x.Rows, x.Cols)
	bl.Forward(r, y, x, b, k)
	if k.save != SaveAll {
		bl.forward(r, y, x, b, k.rerun())
	}
	r.Dev.Copy(x, y)
}

// withInner gives backward what Backward of block i needs, computed again where the block does not keep everything.
func (st Stage) withInner(r *parallel.Rank, i int, p *Pass, backward func(inner BlockSaved)) {
	if kept := p.Saved.blocks[i-st.From]; kept.inner != nil {
		backward(kept.inner)
		return
	}
	st.withInput(i, p, func(x kernels.Tensor, k *Keep) {
		backward(st.model.Blocks[i].forward(r, kernels.Tensor{}, x, p.Batch, k))
	})
}

// withInput gives again the input of block i, for its second Forward.
func (st Stage) withInput(i int, p *Pass, again func(x kernels.Tensor, k *Keep)) {
	s := p.Saved
	kept := s.blocks[i-st.From]
	if !st.offloads(i, s) {
		again(kept.input, kept.keep.rerun())
		return
	}
	again(s.offload.Top(), kept.keep.rerun())
	s.offload.Pop()
}

// rowsAgain is how many rows of block i are computed again at a time, where that is not all of them: of a feed-forward
// by itself no row needs another one, and where none of its weights is trained no gradient is a sum over rows. 0: all.
func (st Stage) rowsAgain(r *parallel.Rank, i int, p *Pass) int {
	m, kept := st.model, p.Saved.blocks[i-st.From]
	bl := m.Blocks[i]
	if kept.inner != nil || kept.keep.save != 0 || len(bl) > 1 || bl.mixer() != nil || m.ExpertParallel() {
		return 0
	}
	if trained, _ := m.TrainedElements(); trained[i] > 0 {
		return 0
	}
	rows := m.rowsAgain
	if rows == 0 {
		rows = r.Dev.Spare() / (p.X.Cols * p.X.DType.Size())
	}
	if rows >= p.X.Rows {
		return 0
	}
	return rows
}

// backwardByRows is Backward of a block that is computed again, so many rows at a time.
func (bl Block) backwardByRows(r *parallel.Rank, d, x kernels.Tensor, rows int) {
	for from := 0; from < x.Rows; from += rows {
		mark, to := r.Stack.Mark(), min(from+rows, x.Rows)
		b := NewBatch(r, make([]int32, to-from), &kernels.Layout{Segments: []int32{0, int32(to - from)}}, nil)
		again := &Keep{again: true}
		bl.forward(r, kernels.Tensor{}, x.RowRange(from, to), b, again).Backward(r, d.RowRange(from, to), b)
		r.Stack.Release(mark)
	}
}

// Backward replaces D of each pass, the gradient of Forward's output, by the gradient of its input. Weight gradients
// accumulate, those of a block in the order of passes. It releases what Forward kept, so D was taken from the stack
// before Forward ran. Where gradients of weights are put off, what Forward kept stays.
func (st Stage) Backward(r *parallel.Rank, s *Share) { st.backward(r, s) }

// backward is Backward, with units that come together with the first block.
func (st Stage) backward(r *parallel.Rank, s *Share, below ...unitBackward) {
	for i := range st.down(r) {
		units := []unitBackward{{blockUnit(i), func(p *Pass) {
			defer r.Stack.Release(r.Stack.Mark())
			p.again, p.dout = st.model.Blocks[i].lastMixture(), p.D
			if rows := st.rowsAgain(r, i, p); rows > 0 {
				st.withInput(i, p, func(x kernels.Tensor, _ *Keep) {
					st.model.Blocks[i].backwardByRows(r, p.D, x, rows)
				})
			} else {
				st.withInner(r, i, p, func(inner BlockSaved) { inner.Backward(r, p.D, p.Batch) })
			}
			p.again = nil
		}}}
		if i == st.From {
			units = append(units, below...)
		}
		st.model.grads.during(r, s, units...)
		if !r.PutsOff() {
			r.Stack.Release(s.Passes[0].Saved.blocks[i-st.From].mark)
		}
	}
}
