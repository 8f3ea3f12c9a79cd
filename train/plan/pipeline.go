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
//	tied  gradients of the head's share of a tied embedding, behind the last backward of ranks that go on
func (s *Step) stages(c clock, w trainer.StepWork, m mesh) {
	x, behind := w.Micro.Exchanged[kernels.ExchangeStages], 2*float64(m.Stages-1)
	if all := float64(w.Micros) * x.Calls; all > 0 {
		one := c.exchange(x.Times(1 / x.Calls))
		s.add("stages' exchanges", all*one, max(all-behind, 0)*one)
	}
	tied := c.exchange(w.Update.Exchanged[kernels.ExchangeStages])
	s.add("tied gradients", tied, tied)
}

// bubble is the share of the time in which the rank that computes longest waits while the micro-batches of a step pass,
// by the schedule and what tasks of each stage take.
func (p *Plan) bubble(c clock, o trainer.Options, packs int, longest trainer.StepWork) float64 {
	_, end := tasks(p.s, packs).Times(p.stageTimes(c, o, packs))
	busy := float64(longest.Micros) * c.arithmetic(longest.Micro, c.machine.Share.Train)
	return max(1-nanoseconds*busy/float64(end), 0)
}

// meeting is what a forward or backward of a pipeline takes on a card besides its operations, as it meets the rank
// before or behind: two H200s that compute 32 micro-batches of moe-1b take 11.3 ms longer for their tasks than half of
// one card's by 1F1B, and 16.8 by chunks, which are 64 such tasks more on each; by zero-bubble, whose gradients of
// weights are tasks that meet no rank, 11.7.
const meeting = 87e-6

// stageTimes is what tasks of each stage take.
func (p *Plan) stageTimes(c clock, o trainer.Options, packs int) schedule.Costs {
	ranks := p.ranks()
	stages := make(schedule.Costs, len(ranks)*setup.Chunks(p.s))
	for i, r := range ranks {
		m := p.models()[i]
		t := trainer.New(r, m, o)
		for chunk, st := range m.PipelineStages(i) {
			stages[chunk*len(ranks)+i] = c.met(c.cost(t.ChunkWork(st, packs, p.s.Data.PackRows)))
		}
	}
	return stages
}

// met is what a chunk's tasks take as they meet other ranks.
func (c clock) met(tasks schedule.Cost) schedule.Cost {
	if c.machine.Device != "cpu" {
		tasks.Forward += int(nanoseconds * meeting)
		tasks.Backward += int(nanoseconds * meeting)
	}
	return tasks
}
