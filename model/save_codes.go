package model

import (
	"io"
	"strings"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/model/checkpoint"
	"lockstep/quant"
)

// InCodes tells whether projections are in codes of a format of the model's own choice, which [Model.SaveInCodes]
// writes.
func (m *Model) InCodes() bool { return m.encoded.As != quant.AsTrained }

// CheckCodes is an error where a format of releases cannot hold some of the weights that are in codes.
func (m *Model) CheckCodes() error {
	for _, p := range m.base() {
		for _, part := range p.Parts {
			if p.Q == nil {
				continue
			}
			if _, err := p.codes(m.dev, part, m.mxfp4Blocks()); err != nil {
				return err
			}
		}
	}
	return nil
}

// SaveInCodes is [Model.SaveFolder] that writes weights in codes as codes: INT4, MXFP4 and MXFP8 as compressed-tensors
// does, MXFP4 of gpt-oss and blocks of FP8 as their releases do. The folder opened again is the same model on every
// bit.
func (m *Model) SaveInCodes(dir, from string) error {
	var tensors []safetensors.OutTensor
	coded := map[string]bool{}
	for _, p := range m.base() {
		for _, part := range p.Parts {
			if p.Q == nil {
				tensors = append(tensors, p.out(p.weight(m.dev), part, part.Name))
				continue
			}
			own, err := p.codes(m.dev, part, m.mxfp4Blocks())
			if err != nil {
				return err
			}
			tensors, coded[part.Name] = append(tensors, own...), true
		}
	}
	own := m.rounding()
	if own.Acts != quant.FP8x128 { // quantization_config says it
		own.Acts = quant.AsTrained
	}
	config, err := m.configFor(m.DType, own)
	if err == nil {
		config, err = checkpoint.EditConfig(config, func(c map[string]any) {
			c[checkpoint.ConfigKey] = m.quantizationConfig(coded)
		})
	}
	if err != nil {
		return err
	}
	return m.saveFolder(dir, from, config, tensors)
}

// mxfp4Blocks tells whether experts are stored as gpt-oss stores them, and nothing else in codes.
func (m *Model) mxfp4Blocks() bool { return m.encoded.As == quant.MXFP4 && m.Family == "gpt_oss" }

// quantizationConfig says how weights are stored, and which modules are not in codes.
func (m *Model) quantizationConfig(coded map[string]bool) map[string]any {
	var plain []string
	for _, p := range m.base() {
		for _, part := range p.Parts {
			if module, ok := strings.CutSuffix(part.Name, ".weight"); ok && len(part.Shape) == 2 && !coded[part.Name] {
				plain = append(plain, module)
			}
		}
	}
	if m.Head.W == m.Embed.Param {
		plain = append(plain, "lm_head")
	}
	return checkpoint.QuantizationConfig(m.encoded.As, m.dev.Definition().Acts, m.mxfp4Blocks(), plain)
}

// codes are the tensors of a part of a quantized weight in a checkpoint; asBlocks: as gpt-oss stores experts.
func (p *Param) codes(dev kernels.Device, part Part, asBlocks bool) ([]safetensors.OutTensor, error) {
	return checkpoint.Quantized{Name: part.Name, Shape: part.Shape, Encoding: p.encoding, Format: p.Q.Format,
		Reordered: part.RowOnDisk != nil, EachRow: p.rows(dev, part)}.Tensors(asBlocks)
}

// rows visits the rows of a part in their order on disk, group by group, and writes what is appended for them.
func (p *Param) rows(dev kernels.Device, part Part) func(w io.Writer, write checkpoint.RowWriter) error {
	return func(w io.Writer, write checkpoint.RowWriter) (failed error) {
		first := part.Group*p.Q.Rows + part.Row
		inMemory := make([]int, part.Rows) // of each row on disk
		for i := range inMemory {
			if part.RowOnDisk != nil {
				inMemory[part.RowOnDisk(i)] = i
			} else {
				inMemory[i] = i
			}
		}
		p.eachHome(dev, func(home kernels.Device, q kernels.QuantizedWeight, at int) {
			for g := range q.Groups {
				from := (at + g) * q.Rows
				low, high := max(first, from), min(first+part.Rows, from+q.Rows)
				if low >= high || failed != nil {
					continue
				}
				group := hostCopy(home, q.Group(g))
				var out []byte
				for i, row := range inMemory[low-first : high-first] {
					out = write(out, low-first+i, checkpoint.QuantizedRow{Weight: group, Row: first + row - from})
				}
				_, failed = w.Write(out)
			}
		})
		return failed
	}
}
