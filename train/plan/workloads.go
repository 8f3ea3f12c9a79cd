package plan

import (
	"math"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/model"
	"lockstep/serve"
	"lockstep/train/setup"
	"lockstep/train/trainer"
)

// StepOn is the time of a step of a run on a machine, whose answers have at most so many positions with their prompts,
// and whose blocks keep what a policy says.
func StepOn(machine configs.Machine, s *configs.Shape, longest int, keep model.Policy) (Step, error) {
	o := &OnMachine{Machine: machine}
	dev := o.device(s)
	p, err := New(dev, s)
	if err == nil {
		err = p.OpenEngines(dev, longest)
	}
	if err != nil {
		return Step{}, err
	}
	p.Keep = keep
	return p.Step(machine)
}

// DecodeSize is a batch that decodes: so many sequences of so many prompt tokens and new ones.
type DecodeSize struct{ Rows, Prompt, Tokens int }

// Workloads is the tokens a second of a shape's training, forward and decoding on one card of a machine, as lockstep
// bench cuda times them.
func Workloads(s *configs.Shape, machine configs.Machine, d DecodeSize) (map[string]float64, error) {
	o := &OnMachine{Machine: machine}
	p, err := New(o.device(s), s)
	if err != nil {
		return nil, err
	}
	if _, err := p.Choose(o.available()); err != nil {
		return nil, err
	}
	by, err := setup.TrainerOptions(s, math.MaxInt32, p.Keep)
	if err != nil {
		return nil, err
	}
	step, err := p.Step(machine)
	if err != nil {
		return nil, err
	}
	c := clock{machine, 1}
	t := trainer.New(p.Rank, p.Model, by)
	rates := map[string]float64{"train": step.Rate()}
	p.clearStacks()
	rates["forward"] = float64(step.Tokens) / c.arithmetic(t.ForwardWork(s.Run.Packs, s.Data.PackRows),
		machine.Share.Forward)
	options := setup.EngineOptions(s)
	options.Slots, options.Pages = d.Rows, 0
	e, err := serve.NewEngine(p.Rank, p.Model, kernels.NewArena(p.Rank.Dev), options)
	if err != nil {
		return nil, err
	}
	dev := p.Rank.Dev.(*meta.Device)
	dev.CountWork(true)
	defer dev.CountWork(false)
	e.PlanDecode(min(d.Prompt+d.Tokens/2, e.MaxLength()))
	decode := float64(d.Tokens) * c.arithmetic(dev.Work(), machine.Share.Decode)
	prefill := c.arithmetic(t.ForwardWork(1, d.Rows*d.Prompt), machine.Share.Forward)
	rates["decode"] = float64(d.Rows*d.Tokens) / (decode + prefill)
	return rates, nil
}
