package plan

import (
	"fmt"

	"lockstep/configs"
	"lockstep/train/setup"
)

// mend says what to change of the mesh that takes least.
func (o *OnMachine) mend(s *configs.Shape) string {
	type graph struct {
		parallel configs.Parallel
		offload  configs.Offload
		rank     int
		weights  string
	}
	open := map[graph]*Plan{} // graphs serve shapes that differ in the size of a step alone
	takes := func(t *configs.Shape) (n int, err error) {
		of := graph{t.Parallel, t.Offload, t.LoRA.Rank, t.Model.Weights}
		p := open[of]
		if p == nil || setup.Generates(t) {
			if p, err = o.open(t); err != nil {
				return 0, err
			}
			open = map[graph]*Plan{of: p}
		}
		p.s = t
		memory, err := p.Choose(o.available())
		if memory.Host > int(o.Machine.Memory.Host*gibibyte) {
			return 0, fmt.Errorf("the host has %.0f GiB", o.Machine.Memory.Host)
		}
		return memory.Total(), err
	}
	text := firstChanges(s, o.available(), takes)
	for _, larger := range o.Machine.Larger() {
		t := *s
		t.Parallel.Ranks, t.Parallel.Weights = larger.Cards, "sharded"
		if t.Parallel.Experts != 1 || o.divides(&t) {
			t.Parallel.Experts = larger.Cards
		}
		if n, err := takes(&t); err == nil && n <= o.available() {
			return fmt.Sprintf("%s; it fits as it is on %s: %s a card", text, larger.Name, Size(n))
		}
	}
	return text
}

// divides tells whether a shape's model has experts to divide.
func (o *OnMachine) divides(s *configs.Shape) bool {
	t := *s
	t.Parallel = configs.Parallel{Ranks: 1, Experts: 1, Context: 1, Stages: 1, Weights: "replicated", Interleave: 1}
	p, err := New(o.device(&t), &t)
	return err == nil && p.Model.Mixtures() > 0
}
