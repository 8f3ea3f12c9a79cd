package model

import (
	"io"
	"slices"
	"strings"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
)

// Load fills the weights from a checkpoint of plain numbers. Tensors that are missing, unexpected, or of another shape
// are errors.
func (m *Model) Load(c *safetensors.Checkpoint) error {
	w, err := checkpoint.NewWeights(c, nil)
	if err != nil {
		return err
	}
	return m.loadWeights(w)
}

// loadWeights fills the weights, those in codes that the model keeps so with codes.
func (m *Model) loadWeights(w *checkpoint.Weights) error {
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
	m.ignored = w.CountIgnored()
	return w.CheckUnused(m.redundant, "config.json")
}

// redundant tells whether the model does not need a tensor that some checkpoints carry.
func (m *Model) redundant(name string) bool {
	return m.Head.W == m.Embed.Param && name == "lm_head.weight" || strings.HasSuffix(name, ".rotary_emb.inv_freq") ||
		m.skip != nil && m.skip(name)
}

// chooseLayout takes the layout that the checkpoint has of a weight with two possible ones. The weight is saved in it
// too.
func (p *Param) chooseLayout(w *checkpoint.Weights) {
	if p.Packed != nil && w.Has(p.Packed.Name) {
		p.Parts = []Part{*p.Packed}
	}
}

// load fills a part from the weight of a name. config is the file that says what the checkpoint should hold.
func (p *Param) load(dev kernels.Device, part Part, name string, w *checkpoint.Weights, config string) error {
	from, err := w.Find(name, config)
	if err == nil {
		err = from.CheckShape(part.Shape, name, w, config)
	}
	if err != nil {
		return err
	}
	if kernels.IsMeta(dev) {
		return nil
	}
	to := p.part(p.weight(dev), part)
	if part.Disk == nil {
		err := from.Convert(p.W.DType, func(at int, raw []byte) error {
			to.write(at, raw)
			return nil
		})
		from.Forget()
		return err
	}
	values := make([]float32, to.len())
	if err := from.Read(values); err != nil {
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
	m.mustBeUpdated()
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
	return safetensors.OutTensor{Name: name, DType: checkpoint.DTypeName(d), Shape: part.Shape,
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

// eachPlace calls visit for each of n elements, with its index on disk. The elements are rows of cols. Rows are visited
// some at a time, column by column, so that a transposed layout is read and written in cache lines.
func eachPlace(n, cols int, disk func(i int) int, visit func(i, at int)) {
	const together = 32
	checkpoint.InParallel(n/cols, together, func(from, to int) {
		for row := from; row < to; row += together {
			for col := range cols {
				for r := row; r < min(row+together, to); r++ {
					i := r*cols + col
					visit(i, disk(i))
				}
			}
		}
	})
}

// arranged is numbers on disk, rounded to a storage type, in memory's layout of rows of cols.
func arranged(onDisk []float32, d kernels.DType, cols int, disk func(i int) int) []byte {
	size := d.Size()
	raw := make([]byte, size*len(onDisk))
	eachPlace(len(onDisk), cols, disk, func(i, at int) { checkpoint.Put(raw[i*size:], d, onDisk[at]) })
	return raw
}

// permuted puts element i, of size bytes in rows of cols, where disk says.
func permuted(raw []byte, size, cols int, disk func(i int) int) []byte {
	out := make([]byte, len(raw))
	eachPlace(len(raw)/size, cols, disk, func(i, at int) { copy(out[at*size:][:size], raw[i*size:]) })
	return out
}

// expertsLast is the layout [rows, cols, groups] on disk of [groups, rows, cols] in memory, rows in an order of their
// own or (nil) the same.
func expertsLast(groups, rows, cols int, order func(row int) int) func(i int) int {
	return func(i int) int {
		group, row, col := i/(rows*cols), i/cols%rows, i%cols
		if order != nil {
			row = order(row)
		}
		return (row*cols+col)*groups + group
	}
}

// rowsOnDisk is the layout of rows of cols elements in another order.
func rowsOnDisk(disk func(row int) int, cols int) func(i int) int {
	return func(i int) int { return disk(i/cols)*cols + i%cols }
}
