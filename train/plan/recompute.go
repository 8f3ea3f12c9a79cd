package plan

import (
	"lockstep/configs"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/trainer"
)

// headroom is the share of the memory that run.recompute = "auto" leaves free.
const headroom = 1.0 / 32

// Choose returns the peak of a run that may take have bytes, 0: unknown, and sets Keep by run.recompute: "auto" keeps
// for the backward pass what there is room for. No bit of a result depends on it: a run can be resumed on a machine
// with other memory.
func (p *Plan) Choose(have int) (n Memory, err error) {
	mode := p.s.Run.Recompute
	p.Keep = nil
	if mode == "full" || mode == "halves" {
		p.Keep = p.Model.Everywhere(0)
	}
	n, err = p.peak()
	room := have - int(headroom*float64(have))
	if err != nil || mode != "auto" || have == 0 || n.Total() <= room {
		return n, err
	}
	p.Keep = p.Model.Everywhere(0)
	if !p.Model.ExpertParallel() { // whose tensors have as many rows as tokens happen to choose
		p.Keep = p.Model.Recompute(p.Extent(), room-(n.Total()-n.Device()), p.step) // n offloads no input
	}
	return p.peak()
}

// Reserved plans a shape for a benchmark, on a rank whose device holds nothing yet, and reserves the rank's stack and
// workspace by the plan.
func Reserved(r *parallel.Rank, s *configs.Shape) (*Plan, error) {
	have := MemoryFor(r.Dev, s)
	if err := ChooseAuto(r.Dev, s, have); err != nil {
		return nil, err
	}
	p, err := New(r.Dev, s)
	if err != nil {
		return nil, err
	}
	if _, err = p.Choose(have); err == nil {
		Reserve(r, p.Rank)
	}
	return p, err
}

// Extent returns the size of the largest micro-batch of a rank: full packs of the longest sequences, or its part of
// them.
func (p *Plan) Extent() model.Extent {
	rows := p.s.Data.PackRows
	return model.Extent{Rows: min(p.packs(), p.s.Run.MicroBatch) * rows / p.s.Parallel.Context,
		Length: min(rows, p.Model.MaxLength)}
}

// step returns the device memory of the trainer's largest step under a policy of what blocks keep, in bytes; of a CPU
// with the inputs of blocks that are offloaded.
func (p *Plan) step(keep model.Policy) int {
	t := trainer.New(p.Rank, p.Model, trainer.Options{MicroBatch: p.s.Run.MicroBatch,
		Interleave: p.s.Parallel.Interleave, Context: p.s.Parallel.Context,
		PipelineSchedule: p.s.Pipeline.Schedule, PipelineAhead: p.s.Pipeline.Ahead, Keep: keep})
	p.clearStacks()
	p.trainingPeak(t)
	n := p.total()
	if n.Shared {
		return n.Device() + n.HostInputs
	}
	return n.Device()
}

// Chosen returns a line about what the backward pass recomputes.
func (p *Plan) Chosen() string {
	return "recompute: " + p.s.Run.Recompute + ": " + p.Model.Summary(p.Keep, p.Extent())
}
