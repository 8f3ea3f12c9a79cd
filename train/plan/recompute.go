package plan

import (
	"lockstep/configs"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/train/trainer"
)

// Headroom is the share of the memory that run.recompute = "auto" leaves free.
const Headroom = 1.0 / 32

// Choose says what the run takes where it has so many bytes, 0: unknown, and chooses by run.recompute what blocks keep
// for the backward pass: "auto" keeps what there is room for. No bit of a result depends on it, so that a run goes on
// to the same end on a machine with other memory.
func (p *Plan) Choose(have int) (n Memory, err error) {
	mode := p.s.Run.Recompute
	p.Keep = nil
	if mode == "full" {
		p.Keep = p.Model.Everywhere(0)
	}
	n, err = p.peak()
	room := have - int(Headroom*float64(have))
	if err != nil || mode != "auto" || have == 0 || n.Total() <= room {
		return n, err
	}
	p.Keep = p.Model.Recompute(p.Extent(), room-(n.Total()-n.Activations), p.Step)
	return p.peak()
}

// Reserved is the plan of a shape for a benchmark, on a rank whose device holds nothing yet. The stack's memory is
// reserved.
func Reserved(r *parallel.Rank, s *configs.Shape) (*Plan, error) {
	p, err := New(r.Dev, s)
	if err != nil {
		return nil, err
	}
	if _, err = p.Choose(MemoryFor(r.Dev, s)); err == nil {
		Reserve(r, p.Rank)
	}
	return p, err
}

// Extent is the size of the largest micro-batch: full packs of the longest sequences.
func (p *Plan) Extent() model.Extent {
	rows := p.s.Data.PackRows
	return model.Extent{Rows: min(p.packs(), p.s.Run.MicroBatch) * rows, Length: min(rows, p.Model.MaxLength)}
}

// Step is what activations take in the largest step of the trainer where blocks keep so much, in bytes.
func (p *Plan) Step(keep model.Policy) int {
	t := trainer.New(p.Rank, p.Model, trainer.Options{MicroBatch: p.s.Run.MicroBatch, Keep: keep})
	clearStack(p.Rank)
	t.Peak(p.packs(), p.s.Data.PackRows)
	return p.Rank.Stack.Peak() + workspaceOf(p.Rank)
}

// Chosen is the line about what the backward pass computes again.
func (p *Plan) Chosen() string {
	return "recompute: " + p.s.Run.Recompute + ": " + p.Model.Summary(p.Keep, p.Extent())
}
