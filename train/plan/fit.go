package plan

import (
	"fmt"
	"slices"
	"strings"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/quant"
	"lockstep/train/setup"
)

// Admit returns the memory of a run, and a line about it. The error of a run that does not fit is one line that names
// the settings by which it would.
func Admit(dev kernels.Device, p *Plan) (n Memory, line string, err error) {
	if err := p.rolloutsFromHost(); err != nil {
		return n, "", err
	}
	have := MemoryFor(dev, p.s)
	if n, err = p.Choose(have); err != nil {
		return n, "", err
	}
	if !n.Shared {
		if err := fitsHost(n, cpu.Available()); err != nil {
			return n, "", err
		}
	}
	switch {
	case have == 0:
		return n, fmt.Sprintf("memory: %v", n), nil
	case n.Total() > have:
		return n, "", fmt.Errorf("out of memory: the run takes %v, and %s has %s available: %s", n, dev.Name(),
			Size(have), mend(dev, p, have))
	}
	return n, fmt.Sprintf("memory: %v of %s available", n, Size(have)), nil
}

// fitsHost is an error where more memory of the host is to be pinned than it has left; have 0: unknown.
func fitsHost(n Memory, have int) error {
	if have == 0 || n.Host <= have {
		return nil
	}
	mend := "remove offload.optimizer, or set lora.rank"
	if n.HostInputs > have || n.HostInputs > n.Host/2 {
		mend = "remove offload.activations, or lower run.micro_batch"
	}
	if n.HostWeights > have || n.HostWeights > n.Host/2 {
		mend = "raise offload.weights, or put weights into 4 bits by model.weights"
	}
	return fmt.Errorf("out of memory: the run takes %s of pinned memory for offload, and the machine has %s "+
		"available: %s", Size(n.Host), Size(have), mend)
}

// MemoryFor returns how many bytes a run may take of a device; 0: unknown. On the CPU that includes what the process
// has already taken; ranks that may share a GPU are planned as if all did.
func MemoryFor(dev kernels.Device, s *configs.Shape) int {
	d, ok := dev.(kernels.Bounded)
	if !ok {
		return 0
	}
	have := d.Available()
	if have > 0 && s.Device.Kind == "cpu" {
		have += anonymousMemory()
	}
	if s.Parallel.Share && s.Device.Kind == "cuda" {
		have /= s.Parallel.Ranks
	}
	return have
}

// change is a change of a setting that lowers the memory of a run.
type change struct {
	key   string
	apply func(s *configs.Shape) (value any, ok bool) // ok is false where it changes nothing
}

// changes are in the order of what they cost the user, cheapest first.
var changes = []change{
	{"run.recompute", func(s *configs.Shape) (any, bool) {
		was := s.Run.Recompute
		s.Run.Recompute = "auto"
		return s.Run.Recompute, was == "none"
	}},
	{"run.micro_batch", func(s *configs.Shape) (any, bool) {
		was := s.Run.MicroBatch
		s.Run.MicroBatch = s.Parallel.Interleave
		return s.Run.MicroBatch, was > s.Run.MicroBatch
	}},
	{"parallel.weights", func(s *configs.Shape) (any, bool) {
		was := s.Parallel.Weights
		s.Parallel.Weights = "sharded"
		return s.Parallel.Weights, was == "replicated" && s.Parallel.Ranks > 1 && s.Parallel.Stages == 1
	}},
	{"offload.optimizer", func(s *configs.Shape) (any, bool) {
		was := s.Offload.Optimizer
		s.Offload.Optimizer = true
		return true, !was && s.Device.Kind == "cuda"
	}},
	{"offload.activations", func(s *configs.Shape) (any, bool) {
		was := s.Offload.Activations
		s.Offload.Activations = s.Run.Recompute != "none" && s.Parallel.Stages == 1
		return true, !was && s.Offload.Activations && s.Device.Kind == "cuda"
	}},
	{"run.verify_tokens", func(s *configs.Shape) (any, bool) {
		was := s.Run.VerifyTokens
		s.Run.VerifyTokens = 0
		return 0, was > 0
	}},
	{"offload.weights", func(s *configs.Shape) (any, bool) {
		ok := s.Offload.Weights == "all" && s.Device.Kind == "cuda" && s.LoRA.On() && !setup.Generates(s) &&
			s.Run.VerifyTokens == 0 && s.Parallel.Stages == 1
		if ok {
			s.Offload.Weights = "auto"
		}
		return s.Offload.Weights, ok
	}},
	{"rollout.slots", func(s *configs.Shape) (any, bool) {
		was := s.Rollout.Slots
		s.Rollout.Slots = min(was, fewSlots)
		return s.Rollout.Slots, was > fewSlots && setup.Generates(s)
	}},
	{"data.pack_rows", func(s *configs.Shape) (any, bool) { return lowerRows(s, 2) }},
	{"data.pack_rows", func(s *configs.Shape) (any, bool) { return lowerRows(s, 2) }},
	{"data.pack_rows", func(s *configs.Shape) (any, bool) { return lowerRows(s, 2) }},
	{"lora.rank", func(s *configs.Shape) (any, bool) {
		if s.LoRA.On() || s.Indexer.Stage != "" {
			return nil, false
		}
		s.LoRA.Rank = model.AdapterRank
		return s.LoRA.Rank, true
	}},
	{"model.weights", func(s *configs.Shape) (any, bool) {
		if !s.LoRA.On() || setup.EncodesWeights(s) {
			return nil, false
		}
		s.Model.Weights = string(quant.INT4)
		return s.Model.Weights, true
	}},
}

// fewSlots of an engine and leastRows of a pack are the lowest that is suggested.
const fewSlots, leastRows = 8, 256

// lowerRows divides the rows of a pack.
func lowerRows(s *configs.Shape, by int) (any, bool) {
	if s.Data.PackRows/by < leastRows {
		return nil, false
	}
	s.Data.PackRows /= by
	return s.Data.PackRows, true
}

// mend names the first changes by which a run takes at most have bytes.
func mend(dev kernels.Device, run *Plan, have int) string {
	return firstChanges(run.s, have, func(t *configs.Shape) (int, error) {
		p, err := New(dev, t)
		if err == nil {
			p.process = run.process
			err = p.OpenEngines(dev, run.longest)
		}
		if err != nil {
			return 0, err
		}
		n, err := p.Choose(have)
		if err == nil && !n.Shared {
			err = fitsHost(n, cpu.Available())
		}
		return n.Total(), err
	})
}

// firstChanges names the first changes by which a shape takes at most have bytes, and leaves out those that are not
// needed. A shape that cannot be planned fits nowhere.
func firstChanges(s *configs.Shape, have int, bytes func(t *configs.Shape) (int, error)) string {
	takes := func(use []change) (total int, text string) {
		var parts []string
		t := *s
		for _, c := range use {
			if value, ok := c.apply(&t); ok {
				parts = slices.DeleteFunc(parts, func(p string) bool { return strings.HasPrefix(p, c.key+" ") })
				parts = append(parts, fmt.Sprintf("%s = %#v", c.key, value))
			}
		}
		n, err := bytes(&t)
		if err != nil {
			return have + 1, ""
		}
		return n, fmt.Sprintf("%s: %s", strings.Join(parts, " and "), Size(n))
	}
	for n := range len(changes) {
		use := slices.Clone(changes[:n+1])
		if total, _ := takes(use); total > have {
			continue
		}
		for i := len(use) - 1; i >= 0; i-- { // what is not needed
			less := slices.Delete(slices.Clone(use), i, i+1)
			if total, _ := takes(less); total <= have {
				use = less
			}
		}
		_, text := takes(use)
		return "it fits with " + text
	}
	least, text := takes(changes)
	if least > have && text == "" {
		return "no setting is enough"
	}
	return "no setting is enough, " + text
}
