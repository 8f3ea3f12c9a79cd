package serve

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"unsafe"

	"lockstep/data"
	"lockstep/data/ordered"
	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Score computes log-probabilities of the token sequences of a JSONL file ({"ids": [...]}) by the training forward. For
// line N it writes logprobs.N F32 [T-1], those of each next token, to a safetensors file, and logits.N F32 [T, V] if
// logits is set. It returns the number of sequences.
func Score(ctx context.Context, s Ranks, in, out string, logits bool) (int, error) {
	p := &scorer{Ranks: s}
	lines := 0
	err := data.EachLine(in, func(_ int, line *ordered.Dict) error {
		ids, err := data.IDs(line, 1, s.Model.Vocab)
		if len(ids) > s.Model.MaxLength {
			return fmt.Errorf("%d tokens, but the model has %d positions", len(ids), s.Model.MaxLength)
		}
		p.add(fmt.Sprintf("logprobs.%d", lines), ids, logProbs, len(ids)-1)
		if logits {
			p.add(fmt.Sprintf("logits.%d", lines), ids, allLogits, len(ids), s.Model.Vocab)
		}
		lines++
		return err
	})
	if err != nil {
		return 0, err
	}
	// in the order of the file, so that those which are computed together are written one after another
	slices.SortFunc(p.scores, func(a, b score) int { return cmp.Compare(a.name, b.name) })
	var tensors []safetensors.OutTensor
	for i, of := range p.scores {
		tensors = append(tensors, safetensors.OutTensor{Name: of.name, DType: "F32", Shape: of.shape,
			Write: func(w io.Writer) error { return p.write(ctx, w, i) }})
	}
	return lines, safetensors.Write(out, tensors, nil)
}

// LogProbs are the log-probabilities of each next token of sequences, by the training forward.
func (s Ranks) LogProbs(seqs [][]int32) ([][]float32, error) {
	out := make([][]float32, len(seqs))
	err := s.deal(len(seqs), func(r *parallel.Rank, m *model.Model, i int) error {
		out[i] = logProbs(r, m, seqs[i])
		return nil
	})
	for i := range out {
		if err == nil && slices.ContainsFunc(out[i], func(x float32) bool { return x != x }) {
			err = fmt.Errorf("sequence %d: %w", i+1, ErrNotFinite)
		}
	}
	return out, err
}

// score is what is computed of a sequence.
type score struct {
	name    string
	shape   []int
	ids     []int32
	compute func(r *parallel.Rank, m *model.Model, ids []int32) []float32
}

// scorer computes scores as they are written, one on each rank at a time.
type scorer struct {
	Ranks
	scores []score
	from   int         // the first of those that were computed last
	last   [][]float32 // their values
}

func (p *scorer) add(name string, ids []int32, compute func(*parallel.Rank, *model.Model, []int32) []float32,
	shape ...int) {
	p.scores = append(p.scores, score{name, shape, ids, compute})
}

// write writes a score, unless ctx has ended. A NaN in it is an error.
func (p *scorer) write(ctx context.Context, w io.Writer, i int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if i < p.from || i >= p.from+len(p.last) {
		if err := p.computeFrom(i); err != nil {
			return err
		}
	}
	v := p.last[i-p.from]
	if slices.ContainsFunc(v, func(x float32) bool { return x != x }) {
		return fmt.Errorf("%s: %w", p.scores[i].name, ErrNotFinite)
	}
	_, err := w.Write(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v)))
	return err
}

// computeFrom computes a score on each rank, from one on.
func (p *scorer) computeFrom(from int) error {
	p.from, p.last = from, make([][]float32, min(len(p.Replicas), len(p.scores)-from))
	return p.deal(len(p.last), func(r *parallel.Rank, m *model.Model, i int) error {
		of := p.scores[from+i]
		p.last[i] = of.compute(r, m, of.ids)
		return nil
	})
}

// packSequences packs sequences into one batch. The target of each row is the next token, -1 for the last.
func packSequences(seqs [][]int32) (ids, targets []int32, l *kernels.Layout) {
	l = &kernels.Layout{}
	for _, s := range seqs {
		l.Spans = append(l.Spans, kernels.Span{Row: len(ids), Rows: len(s)})
		ids = append(ids, s...)
		targets = append(append(targets, s[1:]...), -1)
	}
	l.Segments = []int32{0, int32(len(ids))}
	return ids, targets, l
}

// singleSequence is the batch of one sequence.
func singleSequence(r *parallel.Rank, ids []int32) (b *model.Batch, targets []int32) {
	ids, targets, l := packSequences([][]int32{ids})
	return model.NewBatch(r, ids, l, nil), targets
}

// logProbs are those of each next token, [T-1].
func logProbs(r *parallel.Rank, m *model.Model, ids []int32) []float32 {
	defer r.Stack.Release(r.Stack.Mark())
	b, targets := singleSequence(r, ids)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	m.Head.LogProb(r, logprob, m.Forward(r, b, nil), model.Targets{IDs: parallel.Upload(r, targets)}, b)
	return parallel.Download[float32](r, logprob)[:len(ids)-1]
}

// allLogits are those of every row, [T, V].
func allLogits(r *parallel.Rank, m *model.Model, ids []int32) []float32 {
	defer r.Stack.Release(r.Stack.Mark())
	b, _ := singleSequence(r, ids)
	return parallel.Download[float32](r, m.Head.Logits(r, m.Forward(r, b, nil)))
}
