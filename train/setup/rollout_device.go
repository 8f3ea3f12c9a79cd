package setup

import (
	"fmt"

	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
)

// OpenRolloutDevice opens a second device of the shape's kind, which computes by the definition with the changes of
// rollout.numerics. The caller closes it.
func OpenRolloutDevice(s *configs.Shape) (kernels.Device, error) {
	c, n := Device(s), s.Rollout.Numerics
	def := &c.Definition
	def.Combine, def.Router, def.Norm = kernels.Rounding(n.Combine), kernels.Rounding(n.Router),
		kernels.Rounding(n.Norm)
	if n.KeySplit > 0 {
		def.KeySplit = n.KeySplit
	}
	dev, err := devices.Open(c)
	if err != nil {
		return nil, fmt.Errorf("rollout.numerics: %w", err)
	}
	return dev, nil
}
