package plan

import (
	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/parallel/schedule"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Bubble is the micro-batches of a step of a shape, and the share of the time in which the ranks of its pipeline wait
// by schedule while they pass. Ranks have been counted.
func Bubble(s *configs.Shape) (micros int, share float64) {
	by := tasks(s, s.Run.Packs)
	return by.Micros, by.Bubble(costs(s))
}

// tasks is the schedule of a step of so many packs.
func tasks(s *configs.Shape, packs int) schedule.Schedule {
	return schedule.New(s.Pipeline.Schedule, s.Parallel.Stages, setup.Chunks(s), s.Pipeline.Ahead,
		(packs+s.Run.MicroBatch-1)/s.Run.MicroBatch)
}

// costs are what tasks take: frozen weights have no gradient, and full recompute runs each forward again.
func costs(s *configs.Shape) schedule.Costs {
	c := schedule.Usual[0]
	if s.LoRA.On() {
		c.Weights = 0
	}
	if s.Run.Recompute == "full" {
		c.Backward += c.Forward
	}
	return schedule.Costs{c}
}

// longestStage is the work of a pipeline's step: of its longest stage, with the longest update, which may be that of
// another rank.
func (p *Plan) longestStage(c clock, o trainer.Options, packs int) (w trainer.StepWork) {
	update := func(w trainer.StepWork) float64 {
		return c.arithmetic(w.Update, 1) + c.exchange(w.Update.Exchanged[kernels.ExchangeStages])
	}
	for i, r := range p.ranks() {
		of := trainer.New(r, p.models()[i], o).StepWork(packs, p.s.Data.PackRows)
		longest := w
		if c.arithmetic(of.Micro, 1) > c.arithmetic(w.Micro, 1) {
			longest = of
		}
		if longest.Update = w.Update; update(of) > update(w) {
			longest.Update = of.Update
		}
		w = longest
	}
	return w
}

// stages adds the exchanges of a pipeline, whose longest stage receives rows of other ranks:
//
//	rows  and their gradients, behind other micro-batches, but for those of the first one on its way down and of the
//	      last one on its way up
//	tied  gradients of the head's share of a tied embedding, at the end
func (s *Step) stages(c clock, w trainer.StepWork, m mesh) {
	x, behind := w.Micro.Exchanged[kernels.ExchangeStages], 2*float64(m.Stages-1)
	if all := float64(w.Micros) * x.Calls; all > 0 {
		one := c.exchange(x.Times(1 / x.Calls))
		s.add("stages' exchanges", all*one, max(all-behind, 0)*one)
	}
	s.add("tied gradients", c.exchange(w.Update.Exchanged[kernels.ExchangeStages]), 0)
}
