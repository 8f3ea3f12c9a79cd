package plan

import (
	"fmt"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/train/setup"
)

// StepSize is the micro-batch that a peak of memory is computed for.
type StepSize struct {
	MicroBatch int    // packs
	Rows       int    // of a pack
	Weights    string // format that projections are put into, as model.weights; "": none
}

// DefaultStepSize returns the size that a shape has by default.
func DefaultStepSize() StepSize {
	s := configs.Default()
	return StepSize{s.Run.MicroBatch, s.Data.PackRows, ""}
}

// peakWays are ways to train that [Peaks] shows, as overrides of peakShape. What is on the host is for a GPU, whose
// memory is not the host's.
var peakWays = []struct {
	name string
	lora bool
	set  []string
}{
	{"full", false, []string{"run.recompute=none"}},
	{"full, recompute", false, []string{"run.recompute=full"}},
	{"full, recompute, offload", false, []string{"run.recompute=full", "device.kind=cuda", "offload.optimizer=true",
		"offload.activations=true"}},
	{loraWay, true, []string{"run.recompute=none"}},
	{loraWay + ", recompute", true, []string{"run.recompute=full"}},
	{loraWay + ", recompute, offload", true, []string{"run.recompute=full", "device.kind=cuda",
		"offload.optimizer=true", "offload.activations=true"}},
}

var loraWay = fmt.Sprintf("LoRA of rank %d", model.AdapterRank)

// Peaks returns a table of the peak memory of training in bf16, in full and with adapters on every projection outside
// experts, each without and with recompute, and on a GPU with all on the host that may be there. set names the model,
// as overrides of a shape: "model.path=DIR" or "model.catalogue=NAME".
func Peaks(size StepSize, set ...string) (string, error) {
	var b strings.Builder
	in := ""
	if size.Weights != "" {
		in = fmt.Sprintf(", model.weights = %q", size.Weights)
		set = append(set, "model.weights="+size.Weights)
	}
	fmt.Fprintf(&b, "peak        in bf16%s, micro-batches of %d x %d tokens; offload is on a GPU, by [offload]:\n",
		in, size.MicroBatch, size.Rows)
	set = append(set, fmt.Sprintf("run.micro_batch=%d", size.MicroBatch), fmt.Sprintf("run.packs=%d", size.MicroBatch),
		fmt.Sprintf("data.pack_rows=%d", size.Rows))
	for _, way := range peakWays {
		n, err := peakOf(way.lora, slices.Concat(set, way.set))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "  %-37s%v\n", way.name, n)
	}
	return b.String(), nil
}

// peakOf is the peak of peakShape with overrides.
func peakOf(lora bool, set []string) (n Memory, err error) {
	s, err := configs.Parse("", []byte(peakShape), set)
	if err != nil {
		return n, err
	}
	spare := kernels.SpareCPU
	if s.Device.Kind != "cpu" {
		spare = kernels.SpareGPU
	}
	dev := meta.New(setup.Definition(s), spare)
	p, err := New(dev, s)
	if err == nil && lora {
		s.LoRA.Rank, s.LoRA.Targets = model.AdapterRank, p.Model.OutsideExperts()
		if s.Offload.Optimizer {
			s.Offload.Weights = "0" // GiB of frozen blocks that stay
		}
		p, err = New(dev, s)
	}
	if err != nil {
		return n, err
	}
	return p.Choose(0)
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
