package plan

import (
	"fmt"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/meta"
	"lockstep/train/setup"
)

// ChooseAuto replaces "auto" of offload.weights and offload.host_update by what the plan of a run says, on a card which
// may take `have` bytes, 0: unknown, and cuts the blocks of a pipeline.
func ChooseAuto(dev kernels.Device, s *configs.Shape, have int) error {
	open := func(t *configs.Shape) (*Plan, error) { return New(dev, t) }
	err := chooseStages(s, stageMachine(dev, s.Parallel.Ranks), meta.New(dev.Definition(), dev.Spare()))
	if err != nil {
		return err
	}
	if err := chooseWeights(s, have, open); err != nil || s.Offload.HostUpdate != "auto" {
		return err
	}
	return chooseHostUpdate(s, rateHost(dev, s.Parallel.Ranks), open)
}

// chooseWeights replaces offload.weights = "auto" by the GiB of blocks' weights that stay on a card: those that a run
// leaves room for which has all of them on the host, and recomputes what it may. What else is kept for the backward
// pass comes second.
func chooseWeights(s *configs.Shape, have int, open func(t *configs.Shape) (*Plan, error)) error {
	if s.Offload.Weights != "auto" || setup.Generates(s) {
		return nil
	}
	t := *s
	if t.Run.Recompute == "auto" {
		t.Run.Recompute = "full"
	}
	p, err := open(&t)
	if err != nil {
		return err
	}
	n, err := p.Choose(have)
	if err != nil {
		return err
	}
	left := have - int(headroom*float64(have)) - n.Total()
	s.Offload.Weights = fmt.Sprintf("%.2f", max(float64(left)/gibibyte-0.01, 0))
	return nil
}

// hostRate is bytes/s of copies from pinned memory to a card, measured on an H200.
const hostRate = 54e9

// rolloutsFromHost is an error where tokens would be generated one by one with weights that each forward copies from
// the host: rollouts, held-out questions, the proof behind a run.
func (p *Plan) rolloutsFromHost() error {
	blocks, bytes := p.Model.OnHost()
	var mend string
	switch {
	case blocks == 0:
		return nil
	case p.s.RL.Objective != "":
		mend = `offload.weights = "all"`
	case setup.Generates(p.s):
		mend = "data.eval_samples = 0"
	case p.s.Run.VerifyTokens > 0:
		mend = "run.verify_tokens = 0"
	default:
		return nil
	}
	return fmt.Errorf("offload.weights: each forward of rollouts would copy %s of weights from the host, so they have "+
		"at most %.3g tokens a second for a sequence by 54 GB/s: set %s", Size(bytes), hostRate/float64(bytes), mend)
}
