package plan

import (
	"math"
	"slices"

	"lockstep/configs"
	"lockstep/kernels/meta"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Step is the time of a step on a machine. The plan's devices are those of [meta.New].
func (p *Plan) Step(machine configs.Machine) (step Step, err error) {
	s := p.s
	o, err := setup.TrainerOptions(s, math.MaxInt32, p.Keep)
	if err != nil {
		return step, err
	}
	t := trainer.New(p.Rank, p.Model, o)
	c := clock{machine, s.Parallel.Ranks}
	packs, updates := s.Run.Packs, 1
	if rl := s.RL; rl.Objective != "" {
		answers := rl.Prompts * rl.Group
		packs = max((answers/rl.Minibatches*p.longest+s.Data.PackRows-1)/s.Data.PackRows, 1)
		updates = rl.Minibatches * rl.Epochs
		step.rollouts(c, p.rolloutWork(t, answers))
	}
	p.clearStacks()
	var w trainer.StepWork
	bubble := 0.0
	if p.Model.Stages() > 0 {
		w = p.longestStage(c, o, packs)
		bubble = p.bubble(c, o, packs, w)
	} else {
		w = t.StepWork(packs, s.Data.PackRows)
	}
	m := p.meshOf(w, bubble)
	// of the first round, a quarter where all is computed again; answers wait for all of the last update
	forward := float64(m.Interleave*w.Share) * c.arithmetic(w.Micro, machine.Share.Train) / 4
	states, first := p.mostStates(), 2 // units that are updated before the forward: the embedding and a block
	if s.Parallel.Weights == "sharded" {
		first++
	}
	for i := range updates {
		if s.RL.Objective != "" && i == updates-1 {
			forward = 0
		}
		step.update(c, w, m)
		ring := s.Offload.Ring * gibibyte
		step.offloaded(c, states, ring, states.awaited(first, w.Share, ring), forward)
	}
	step.merge()
	if step.Tokens = packs * s.Data.PackRows; s.RL.Objective != "" {
		step.Tokens = s.RL.Prompts * s.RL.Group * s.Rollout.MaxTokens
	}
	return step, nil
}

// meshOf is what the time of a step of such work depends on besides.
func (p *Plan) meshOf(w trainer.StepWork, bubble float64) mesh {
	s := p.s
	m := mesh{Parallel: s.Parallel, blocks: len(p.Model.Blocks), share: w.Share, bubble: bubble}
	m.Interleave = min(s.Parallel.Interleave, w.Micros)
	m.segments = w.Share * max(s.Run.MicroBatch/s.Parallel.Interleave, 1) *
		((s.Data.PackRows + s.Definition.Segment - 1) / s.Definition.Segment)
	if w.Share == 1 && p.Model.SmallGradients() {
		m.segments = 1 // a rank does not wait for the one before
	}
	return m
}

// mostStates is the optimizer state on the host of the rank that has most of it.
func (p *Plan) mostStates() (most hostStates) {
	for _, m := range p.models() {
		if of := statesOf(m); of.passing()+of.updated > most.passing()+most.updated {
			most = of
		}
	}
	return most
}

// merge adds parts of one name.
func (s *Step) merge() {
	var list []Part
	for _, part := range s.Parts {
		i := slices.IndexFunc(list, func(p Part) bool { return p.Name == part.Name })
		if i < 0 {
			list = append(list, part)
			continue
		}
		list[i].Seconds, list[i].Hidden = list[i].Seconds+part.Seconds, list[i].Hidden+part.Hidden
	}
	s.Parts = list
}

// rolloutWork counts what sampling so many answers takes of each rank.
func (p *Plan) rolloutWork(t *trainer.Trainer, answers int) rolloutWork {
	s, e, dev := p.s, p.engines[0], p.Rank.Dev.(*meta.Device)
	prompt := max(p.longest-s.Rollout.MaxTokens, 1)
	p.clearStacks()
	dev.CountWork(true)
	defer dev.CountWork(false)
	e.PlanDecode(min(prompt+s.Rollout.MaxTokens/2, e.MaxLength()))
	w := rolloutWork{decode: dev.Work(), answers: answers, slots: s.Rollout.Slots, tokens: s.Rollout.MaxTokens,
		prefills: float64(s.RL.Prompts*prompt) / float64(s.Parallel.Ranks*s.Data.PackRows)}
	w.prefill = t.ForwardWork(1, s.Data.PackRows)
	return w
}
