package serve

import (
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
func Score(ctx context.Context, r *parallel.Rank, m *model.Model, in, out string, logits bool) (int, error) {
	var seqs [][]int32
	err := data.EachLine(in, func(_ int, line *ordered.Dict) error {
		ids, err := data.IDs(line, 1, m.Vocab)
		if len(ids) > m.MaxLength {
			return fmt.Errorf("%d tokens, but the model has %d positions", len(ids), m.MaxLength)
		}
		seqs = append(seqs, ids)
		return err
	})
	if err != nil {
		return 0, err
	}
	var tensors []safetensors.OutTensor
	for n, ids := range seqs {
		tensors = append(tensors, lazyTensor(ctx, fmt.Sprintf("logprobs.%d", n), []int{len(ids) - 1}, func() []float32 {
			return logProbs(r, m, ids)
		}))
		if logits {
			tensors = append(tensors, lazyTensor(ctx, fmt.Sprintf("logits.%d", n), []int{len(ids), m.Vocab},
				func() []float32 {
					return allLogits(r, m, ids)
				}))
		}
	}
	return len(seqs), safetensors.Write(out, tensors, nil)
}

// lazyTensor is an F32 tensor that is computed when it is written, unless ctx has ended. A NaN in it is an error.
func lazyTensor(ctx context.Context, name string, shape []int, values func() []float32) safetensors.OutTensor {
	return safetensors.OutTensor{Name: name, DType: "F32", Shape: shape, Write: func(w io.Writer) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		v := values()
		if slices.ContainsFunc(v, func(x float32) bool { return x != x }) {
			return fmt.Errorf("%s: %w", name, ErrNotFinite)
		}
		_, err := w.Write(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v)))
		return err
	}}
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
