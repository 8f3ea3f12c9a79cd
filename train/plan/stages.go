package plan

import (
	"math"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/parallel/schedule"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// chooseStages cuts the blocks of a pipeline, where pipeline.blocks does not say how: so that a step ends as soon as
// can be by times on a machine. Its devices are those of [meta.New].
func chooseStages(s *configs.Shape, machine configs.Machine, dev *meta.Device) error {
	s.Pipeline.Planned = nil
	stages, chunks := s.Parallel.Stages, setup.Chunks(s)
	if stages < 2 || len(s.Pipeline.Blocks) > 0 {
		return nil
	}
	one := *s // with all blocks
	one.Parallel, one.Offload = configs.Default().Parallel, configs.Default().Offload
	p, err := New(dev, &one)
	if err != nil || len(p.Model.Blocks) < stages*chunks { // which opening the pipeline tells
		return err
	}
	if s.Run.Recompute == "full" {
		p.Keep = p.Model.Everywhere(0)
	}
	by, c := tasks(s, p.packs()), clock{machine, stages}
	whole, end, err := p.cut(by, c)
	if err != nil {
		return err
	}
	p.Model.HalveBlocks()
	if p.Keep != nil {
		p.Keep = p.Model.Everywhere(0)
	}
	halves, sooner, err := p.cut(by, c)
	if s.Pipeline.Planned = whole; float64(sooner) < worthHalves*float64(end) {
		s.Pipeline.Planned = halves
	}
	return err
}

// worthHalves is how much of a step by whole blocks one that parts a block has to be, at most: the rows between its
// halves are kept too.
const worthHalves = 0.99

// cut is how many blocks each stage has, and when a step ends by that.
func (p *Plan) cut(by schedule.Schedule, c clock) (blocks []float64, end int, err error) {
	costs, err := p.blockTimes(c)
	if err != nil {
		return nil, 0, err
	}
	cut, at := schedule.Cut(by.Name, len(by.Ranks), by.Chunks, p.s.Pipeline.Ahead, by.Micros, costs), 0
	for _, n := range cut {
		blocks, at = append(blocks, p.Model.BlocksOf(at, at+n)), at+n
	}
	return blocks, by.End(schedule.Stages(costs, cut)), nil
}

// stageMachine is that of a card, or else one H200: stages are cut by the ratios of times, which are much the same on
// other cards.
func stageMachine(dev kernels.Device, cards int) configs.Machine {
	m, known := configs.MachineOf(dev.Name(), cards)
	if !known {
		var err error
		if m, err = configs.LoadMachine("1xH200"); err != nil {
			panic(err) // it is embedded
		}
	}
	return m
}

// blockTimes is what the tasks of each block take, and its update.
func (p *Plan) blockTimes(c clock) (blocks []schedule.Cost, err error) {
	o, err := setup.TrainerOptions(p.s, math.MaxInt32, p.Keep)
	if err != nil {
		return nil, err
	}
	t := trainer.New(p.Rank, p.Model, o)
	p.clearStacks()
	update := c.arithmetic(t.UpdateWork(), c.machine.Share.Train)
	trained, all := p.Model.TrainedElements()
	for i := range p.Model.Blocks {
		cost := c.cost(t.ChunkWork(p.Model.Stage(i, i+1), p.packs(), p.s.Data.PackRows))
		cost.Update = int(nanoseconds * update * float64(trained[i]) / float64(max(all, 1)))
		blocks = append(blocks, cost)
	}
	return blocks, nil
}

const nanoseconds = 1e9

// cost is what a chunk's tasks take.
func (c clock) cost(w trainer.ChunkWork) schedule.Cost {
	of := func(w meta.Work) int { return int(nanoseconds * c.arithmetic(w, c.machine.Share.Train)) }
	return schedule.Cost{Forward: of(w.Forward), Backward: of(w.Backward), Weights: of(w.Weights)}
}
