package setup

import (
	"lockstep/configs"
	"lockstep/kernels"
	"lockstep/kernels/devices"
	"lockstep/model"
	"lockstep/parallel"
)

// OnShape runs body on the untrained model of a shape file with overrides, which has no memory for training.
func OnShape(path string, set []string, broken kernels.Break, body func(r *parallel.Rank, m *model.Model) error) error {
	s, err := configs.Load(path, set)
	if err != nil {
		return err
	}
	c := Device(s)
	c.Break = broken
	dev, err := devices.Open(c)
	if err != nil {
		return err
	}
	defer dev.Close()
	return parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, _, err := OpenModel([]kernels.Device{r.Dev}, s)
		if err != nil {
			return err
		}
		return body(r, m)
	})
}
