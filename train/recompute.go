package train

import (
	"lockstep/configs"
	"lockstep/model"
	"lockstep/parallel"
)

// headroom is the share of the memory that run.recompute = "auto" leaves free.
const headroom = 1.0 / 32

// plan says what the run takes where it has so many bytes, 0: unknown, and chooses by run.recompute what blocks keep
// for the backward pass: "auto" keeps what there is room for. No bit of a result depends on it, so that a run goes on
// to the same end on a machine with other memory.
func (p *planner) plan(have int) (n Memory, err error) {
	mode := p.s.Run.Recompute
	p.keep = nil
	if mode == "full" {
		p.keep = p.m.Everywhere(0)
	}
	n, err = p.peak()
	room := have - int(headroom*float64(have))
	if err != nil || mode != "auto" || have == 0 || n.Total() <= room {
		return n, err
	}
	p.keep = p.m.Recompute(p.extent(), room-(n.Total()-n.Activations), p.step)
	return p.peak()
}

// planned is the plan of a shape for a benchmark, on a rank whose device holds nothing yet. The stack's memory is
// reserved.
func planned(r *parallel.Rank, s *configs.Shape) (*planner, error) {
	p, err := newPlanner(r.Dev, s)
	if err != nil {
		return nil, err
	}
	if _, err = p.plan(memoryFor(r.Dev, s)); err == nil {
		reserve(r, p.r)
	}
	return p, err
}

// extent is the size of the largest micro-batch: full packs of the longest sequences.
func (p *planner) extent() model.Extent {
	rows := p.s.Data.PackRows
	return model.Extent{Rows: min(p.packs(), p.s.Run.MicroBatch) * rows, Length: min(rows, p.m.MaxLength)}
}

// step is what activations take in the largest step of the trainer where blocks keep so much, in bytes.
func (p *planner) step(keep model.Policy) int {
	t := trainer{r: p.r, m: p.m, microBatch: p.s.Run.MicroBatch, keep: keep}
	clearStack(p.r)
	t.largest(p.packs(), p.s.Data.PackRows)
	return p.r.Stack.Peak() + workspaceOf(p.r)
}

// chosen is the line about what the backward pass computes again.
func (p *planner) chosen() string {
	return "recompute: " + p.s.Run.Recompute + ": " + p.m.Summary(p.keep, p.extent())
}
