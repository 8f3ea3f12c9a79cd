package model

import (
	"io"
	"slices"
	"strings"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// Load fills the weights from a checkpoint of plain numbers. Tensors that are missing, unexpected, or of another shape
// are errors.
func (m *Model) Load(c *safetensors.Checkpoint) error {
	w, err := newWeights(c, nil)
	if err != nil {
		return err
	}
	return m.loadWeights(w)
}

// loadWeights fills the weights, those in codes that the model keeps so with codes.
func (m *Model) loadWeights(w *weights) error {
	for _, p := range m.base() {
		p.chooseLayout(w)
		if p.Q != nil {
			if err := p.loadCodes(m.dev, w); err != nil {
				return err
			}
			continue
		}
		for _, part := range p.Parts {
			if err := p.load(m.dev, part, part.Name, w, "config.json"); err != nil {
				return err
			}
		}
	}
	m.ignored = w.countIgnored()
	return w.unused(m.redundant, "config.json")
}

// redundant tells whether the model does not need a tensor that some checkpoints carry.
func (m *Model) redundant(name string) bool {
	return m.Head.W == m.Embed.Param && name == "lm_head.weight" || strings.HasSuffix(name, ".rotary_emb.inv_freq") ||
		m.skip != nil && m.skip(name)
}

// chooseLayout takes the layout that the checkpoint has of a weight with two possible ones. The weight is saved in it
// too.
func (p *Param) chooseLayout(w *weights) {
	if p.Packed != nil && w.has(p.Packed.Name) {
		p.Parts = []Part{*p.Packed}
	}
}

// load fills a part from the weight of a name. config is the file that says what the checkpoint should hold.
func (p *Param) load(dev kernels.Device, part Part, name string, w *weights, config string) error {
	from, err := w.find(name, config)
	if err == nil {
		err = from.fits(part, name, w, config)
	}
	if err != nil {
		return err
	}
	if kernels.IsMeta(dev) {
		return nil
	}
	to := p.part(p.weight(dev), part)
	if part.Disk == nil {
		err := from.stored(p.W.DType, func(at int, raw []byte) error {
			to.write(at, raw)
			return nil
		})
		from.forget()
		return err
	}
	values := make([]float32, to.len())
	if err := from.read(values); err != nil {
		return err
	}
	to.write(0, arranged(values, p.W.DType, p.W.Cols, part.Disk))
	return nil
}

// base is the parameters of the model without adapters.
func (m *Model) base() []*Param {
	adapter := m.adapterParams()
	return slices.DeleteFunc(slices.Clone(m.Params), func(p *Param) bool { return adapter[p] })
}

// Tensors lists the checkpoint's tensors of the model, adapters left out, in the model's storage type.
func (m *Model) Tensors() []safetensors.OutTensor {
	var out []safetensors.OutTensor
	for _, p := range m.base() {
		for _, part := range p.Parts {
			if p.Q != nil {
				out = append(out, p.dequantized(m.dev, part))
				continue
			}
			out = append(out, p.out(p.weight(m.dev), part, part.Name))
		}
	}
	return out
}

// out writes one part of a tensor shaped like the parameter: its weight, or its gradient.
func (p *Param) out(all elements, part Part, name string) safetensors.OutTensor {
	d := all[0].t.DType
	return safetensors.OutTensor{Name: name, DType: dtypeName(d), Shape: part.Shape,
		Write: func(w io.Writer) error {
			of := p.part(all, part)
			if part.Disk != nil {
				raw := make([]byte, of.len()*d.Size())
				of.read(raw, 0)
				_, err := w.Write(permuted(raw, d.Size(), p.W.Cols, part.Disk))
				return err
			}
			return of.writeTo(w)
		}}
}

// dtypeName is what the safetensors format calls a storage type.
func dtypeName(d kernels.DType) string {
	if d == kernels.BF16 {
		return "BF16"
	}
	return "F32"
}
