package plan

import (
	"fmt"
	"strings"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/train/setup"
)

// StepSize is the micro-batch that a peak of memory is computed for.
type StepSize struct {
	MicroBatch int // packs
	Rows       int // of a pack
}

// DefaultStepSize returns the size that a shape has by default.
func DefaultStepSize() StepSize {
	s := configs.Default()
	return StepSize{s.Run.MicroBatch, s.Data.PackRows}
}

// Peaks returns a table of the peak memory of training in bf16, in full and with adapters on every projection outside
// experts, each with and without recompute.
// set names the model, as overrides of a shape: "model.path=DIR" or "model.catalogue=NAME".
func Peaks(size StepSize, set ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "peak        in bf16, micro-batches of %d x %d tokens:\n", size.MicroBatch, size.Rows)
	set = append(set, fmt.Sprintf("run.micro_batch=%d", size.MicroBatch), fmt.Sprintf("run.packs=%d", size.MicroBatch),
		fmt.Sprintf("data.pack_rows=%d", size.Rows))
	for _, rank := range []int{0, model.AdapterRank} {
		for _, recompute := range []bool{false, true} {
			s, err := configs.Parse("", []byte(peakShape), append(set, fmt.Sprintf("run.recompute=%t", recompute)))
			if err != nil {
				return "", err
			}
			dev := meta.New(setup.Definition(s), kernels.SpareCPU)
			p, err := New(dev, s)
			if err == nil && rank > 0 {
				s.LoRA.Rank = rank
				s.LoRA.Targets = p.Model.OutsideExperts()
				p, err = New(dev, s)
			}
			if err != nil {
				return "", err
			}
			n, err := p.Choose(0)
			if err != nil {
				return "", err
			}
			way := "full"
			if rank > 0 {
				way = fmt.Sprintf("LoRA of rank %d", rank)
			}
			if recompute {
				way += ", recompute"
			}
			fmt.Fprintf(&b, "  %-28s%v\n", way, n)
		}
	}
	return b.String(), nil
}

// peakShape is supervised training without a proof.
const peakShape = `
[model]
dtype = "bf16"
[data]
path = "data.jsonl"
[run]
steps = 1
verify_tokens = 0
`
