package plan

import (
	"math"
	"slices"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/serve"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// Answer is the tokens of a prompt, and of the answer that a rollout samples.
type Answer struct{ Prompt, New int }

// AnswersOn is the seconds in which the engines of a shape's ranks give answers on a machine: steps of as many
// sequences as a rank has at that time, at share.decode, and a forward over prompts, at share.forward.
func AnswersOn(machine configs.Machine, s *configs.Shape, answers []Answer) (float64, error) {
	o := &OnMachine{Machine: machine}
	p, err := New(o.device(s), s)
	if err != nil {
		return 0, err
	}
	c, slots := clock{machine, s.Parallel.Ranks}, setup.EngineOptions(s).Slots
	prompts, tokens := 0, 0
	for _, a := range answers {
		prompts, tokens = prompts+a.Prompt, tokens+a.New
	}
	length := (prompts + tokens/2) / max(len(answers), 1)
	steps := map[int]float64{}
	for b := 1; b < 2*slots; b *= 2 {
		if steps[min(b, slots)], err = p.decodeStep(c, min(b, slots), length); err != nil {
			return 0, err
		}
	}
	by, err := setup.TrainerOptions(s, math.MaxInt32, p.Keep)
	if err != nil {
		return 0, err
	}
	p.clearStacks()
	prefill := c.forward(trainer.New(p.Rank, p.Model, by).ForwardWork(1, s.Data.PackRows), machine.Share.Forward)
	return answerSeconds(answers, s.Parallel.Ranks, slots, prefill/float64(s.Data.PackRows), steps), nil
}

// decodeStep is the seconds of a step that decodes a row of so many sequences, each at so many positions.
func (p *Plan) decodeStep(c clock, sequences, length int) (float64, error) {
	options := setup.EngineOptions(p.s)
	options.Slots, options.Pages = sequences, 0
	e, err := serve.NewEngine(p.Rank, p.Model, kernels.NewArena(p.Rank.Dev), options)
	if err != nil {
		return 0, err
	}
	p.clearStacks()
	dev := p.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	e.PlanDecode(min(max(length, 1), e.MaxLength()))
	return c.forward(dev.Work(), c.machine.Share.Decode), nil
}

// answerSeconds is that of the rank that ends last. Answers are dealt to ranks one by one; a slot that is free takes
// the next one, so the last steps have few sequences. Prefill is the seconds of a row of a prompt, steps those of a
// step by sequences, between which lie straight lines.
func answerSeconds(answers []Answer, ranks, slots int, prefill float64, steps map[int]float64) (last float64) {
	for rank := range ranks {
		seconds, next := 0.0, rank
		var left []int // tokens of each sequence
		for {
			for ; len(left) < slots && next < len(answers); next += ranks {
				left = append(left, answers[next].New)
				seconds += float64(answers[next].Prompt) * prefill
			}
			if len(left) == 0 {
				break
			}
			n := slices.Min(left) // until the first ends
			seconds += float64(n) * between(steps, len(left))
			for i := range left {
				left[i] -= n
			}
			left = slices.DeleteFunc(left, func(tokens int) bool { return tokens == 0 })
		}
		last = max(last, seconds)
	}
	return last
}

// between is the value of a table at n, between its neighbours there.
func between(table map[int]float64, n int) float64 {
	below, above := 0, math.MaxInt
	for at := range table {
		if at <= n {
			below = max(below, at)
		}
		if at >= n {
			above = min(above, at)
		}
	}
	if below == above {
		return table[n]
	}
	return table[below] + (table[above]-table[below])*float64(n-below)/float64(above-below)
}
