package model

import (
	"lockstep/data"
	"lockstep/kernels"
)

// AdapterGradients lists gradients as AdapterTensors lists weights.
func (m *Model) AdapterGradients(dev kernels.Device) []data.OutTensor {
	return m.adapterTensors(dev, func(p *Param) kernels.Tensor { return p.Grad })
}
