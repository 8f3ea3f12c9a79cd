package model

import (
	"bytes"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// AdapterGradients lists gradients as AdapterTensors lists weights.
func (m *Model) AdapterGradients() []safetensors.OutTensor {
	return m.adapterTensors(func(p *Param) elements { return elements{{m.dev, p.Grad.Reshape(1, p.Grad.Len())}} })
}

// StartAnew makes the next gradient count what lies there as +0.
func (p *Param) StartAnew() {
	fresh := true
	p.fresh = &fresh
}

// Gradient is the gradient of one tensor of the checkpoint, laid out as on disk.
func (p *Param) Gradient(dev kernels.Device, part Part) []float32 {
	var raw bytes.Buffer
	if err := p.out(elements{{dev, p.Grad.Reshape(1, p.Grad.Len())}}, part, part.Name).Write(&raw); err != nil {
		panic(err) // a buffer takes everything
	}
	values := make([]float32, raw.Len()/4)
	if err := safetensors.ToF32(values, safetensors.TensorInfo{Name: part.Name, DType: "F32", Shape: []int{len(values)},
		Data: raw.Bytes()}); err != nil {
		panic(err)
	}
	return values
}

// RowsAgain makes a feed-forward by itself compute so many rows again at a time.
func (m *Model) RowsAgain(rows int) { m.rowsAgain = rows }

// Block is the block that computes with the parameter.
func (p *Param) Block() int { return p.unit - blockUnit(0) }
