package serve

import (
	"fmt"
	"io"
	"unsafe"

	"lockstep/data"
	"lockstep/data/jinja"
	"lockstep/kernels"
	"lockstep/model"
	"lockstep/parallel"
)

// Score reads token sequences from a JSONL file ({"ids": [...]}) and writes, for line N, logprobs.N F32 [T-1] (of each next token) and, if
// logits is set, logits.N F32 [T, V] to a safetensors file, by the training forward. It returns the number of sequences.
func Score(r *parallel.Rank, m *model.Model, in, out string, logits bool) (int, error) {
	var seqs [][]int32
	err := data.EachLine(in, func(_ int, line *jinja.Dict) error {
		ids, err := data.IDs(line, 1, m.Vocab)
		if len(ids) > m.MaxLength {
			return fmt.Errorf("%d tokens, the model has %d positions", len(ids), m.MaxLength)
		}
		seqs = append(seqs, ids)
		return err
	})
	if err != nil {
		return 0, err
	}
	var tensors []data.OutTensor
	for n, ids := range seqs {
		tensors = append(tensors, floats(fmt.Sprintf("logprobs.%d", n), []int{len(ids) - 1}, func() []float32 { return logProbs(r, m, ids) }))
		if logits {
			tensors = append(tensors, floats(fmt.Sprintf("logits.%d", n), []int{len(ids), m.Vocab}, func() []float32 { return allLogits(r, m, ids) }))
		}
	}
	return len(seqs), data.WriteSafetensors(out, tensors, nil)
}

// floats is an F32 tensor that is computed when it is written.
func floats(name string, shape []int, values func() []float32) data.OutTensor {
	return data.OutTensor{Name: name, DType: "F32", Shape: shape, Write: func(w io.Writer) error {
		v := values()
		_, err := w.Write(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v)))
		return err
	}}
}

// alone is the batch of one sequence.
func alone(r *parallel.Rank, ids []int32) *model.Batch {
	l := &kernels.Layout{Spans: []kernels.Span{{Rows: len(ids)}}, Packs: []int32{0, int32(len(ids))}}
	return model.NewBatch(r, ids, l, nil)
}

func logProbs(r *parallel.Rank, m *model.Model, ids []int32) []float32 {
	defer r.Stack.Release(r.Stack.Mark())
	b := alone(r, ids)
	logprob := r.Stack.New(kernels.F32, 1, len(ids))
	targets := append(append([]int32{}, ids[1:]...), -1)
	m.Head.LogProb(r, logprob, m.Forward(r, b, nil), parallel.Upload(r, targets), b)
	return parallel.Download[float32](r, logprob)[:len(ids)-1]
}

func allLogits(r *parallel.Rank, m *model.Model, ids []int32) []float32 {
	defer r.Stack.Release(r.Stack.Mark())
	return parallel.Download[float32](r, m.Head.Logits(r, m.Forward(r, alone(r, ids), nil)))
}
