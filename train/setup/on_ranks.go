package setup

import (
	"errors"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/parallel/schedule"
	"lockstep/serve"
)

// CountRanks replaces numbers of ranks that are 0: all devices of the machine, and all ranks.
func CountRanks(c devices.Config, p *configs.Parallel) (err error) {
	if p.Ranks == 0 {
		if p.Ranks, err = devices.Count(c.Kind); err != nil {
			return err
		}
	}
	if p.Experts == 0 {
		p.Experts = p.Ranks
	}
	if p.Context == 0 {
		p.Context = p.Ranks
	}
	if p.Stages == 0 {
		p.Stages = p.Ranks
	}
	return nil
}

// OnRanks counts ranks, opens their devices as a world, and runs body in the first rank.
func OnRanks(c devices.Config, p *configs.Parallel, body func(w *parallel.World, r *parallel.Rank) error) error {
	if err := CountRanks(c, p); err != nil {
		return err
	}
	list, closeAll, err := devices.OpenRanks(c, p.Ranks, p.Share)
	if err != nil {
		return err
	}
	w, err := parallel.Open(list, parallel.Mesh{Experts: p.Experts, Context: p.Context, Stages: p.Stages})
	if err != nil {
		return errors.Join(err, closeAll())
	}
	err = w.Lead(func(r *parallel.Rank) error { return body(w, r) })
	w.Close()
	return errors.Join(err, closeAll())
}

// OnShape runs body on the untrained model of a shape file with overrides, which has no memory for training.
func OnShape(path string, set []string, broken kernels.Break, body func(s serve.Ranks) error) error {
	s, err := configs.Load(path, set)
	if err != nil {
		return err
	}
	c := Device(s)
	c.Break = broken
	return OnRanks(c, &s.Parallel, func(w *parallel.World, r *parallel.Rank) error {
		m, _, err := OpenModel(w.Devices(), s)
		if err != nil {
			return err
		}
		ranks, err := serve.Distribute(w, r, m)
		if err != nil {
			return err
		}
		return body(ranks)
	})
}

// CutBy sets how a model is cut over ranks; see [model.Options].
func CutBy(o *model.Options, p configs.Parallel, ranks []kernels.Device) {
	o.Ranks, o.Experts, o.Blocks = ranks, p.Experts > 1, p.Weights == "sharded"
	o.Stages = p.Stages
}

// Chunks is how many chunks of blocks a stage of a shape has.
func Chunks(s *configs.Shape) int {
	if s.Pipeline.Schedule == schedule.Interleaved {
		return s.Pipeline.Chunks
	}
	return 1
}
