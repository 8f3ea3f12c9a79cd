package model

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"

	"lockstep/data/safetensors"
	"lockstep/kernels"
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
	config, err := m.configFor(m.DType)
	if err == nil {
		config, err = editConfig(config, func(c map[string]any) { c[quantizationKey] = m.quantizationConfig(coded) })
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
	as, wide := m.encoded.As, m.encoded.As.Format().Wide
	switch {
	case as == quant.FP8:
		return map[string]any{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
			"weight_block_size": []int{as.High(), wide}, "modules_to_not_convert": plain}
	case m.mxfp4Blocks():
		return map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": plain}
	}
	weights := map[string]any{"num_bits": as.Format().Code.Bits(), "type": "float", "strategy": "group",
		"group_size": wide, "symmetric": true, "dynamic": false, "actorder": nil}
	format := string(as) + "-pack-quantized"
	switch as {
	case quant.INT4:
		weights["type"], format = "int", "pack-quantized"
	case quant.MXFP8:
		format, weights["scale_dtype"] = "mxfp8-quantized", "torch.uint8"
	}
	return map[string]any{"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
		"ignore": plain, "config_groups": map[string]any{"group_0": map[string]any{"targets": []string{"Linear"},
			"weights": weights, "input_activations": nil, "output_activations": nil}}}
}

// codes are the tensors of a part of a quantized weight in a checkpoint; asBlocks: as gpt-oss stores experts.
func (p *Param) codes(dev kernels.Device, part Part, asBlocks bool) ([]safetensors.OutTensor, error) {
	rows, cols := part.Shape[len(part.Shape)-2], part.Shape[len(part.Shape)-1]
	stem, isModule := strings.CutSuffix(part.Name, ".weight")
	bytes, blocks := p.Q.Format.RowBytes(cols), p.Q.Format.Blocks(cols)
	refuse := func(what string) ([]safetensors.OutTensor, error) {
		return nil, fmt.Errorf("tensor %s in %s: %s: choose another format, or experts alone", part.Name, p.encoding,
			what)
	}
	lines := p.lines(dev, part)
	tensor := func(name, dtype string, shape []int, write func(row int, l quantizedLines, out []byte) []byte,
	) safetensors.OutTensor {
		return safetensors.OutTensor{Name: name, DType: dtype, Shape: shape, Write: func(w io.Writer) error {
			return lines(w, write)
		}}
	}
	switch {
	case p.encoding == quant.FP8 && part.RowOnDisk == nil:
		first, high := part.Group*p.Q.Rows+part.Row, p.encoding.High()
		down := (rows + high - 1) / high
		shape := append(slices.Clone(part.Shape[:len(part.Shape)-2]), down, blocks)
		return []safetensors.OutTensor{tensor(part.Name, "F8_E4M3", part.Shape, codesOfRow),
			tensor(part.Name+"_scale_inv", "F32", shape, func(row int, l quantizedLines, out []byte) []byte {
				if (row-first)%rows%high != 0 {
					return out
				}
				return l.scales(out, row)
			})}, nil
	case asBlocks && isModule:
		return refuse("gpt-oss has experts alone in MXFP4")
	case asBlocks: // whose numbers are transposed
		n, in, out := part.Shape[0], part.Shape[1], part.Shape[2]
		if in%32 != 0 {
			return refuse(fmt.Sprintf("%d inputs are no multiple of 32", in))
		}
		return []safetensors.OutTensor{tensor(part.Name+"_blocks", "U8", []int{n, out, in / 32, 16}, codesOfRow),
			tensor(part.Name+"_scales", "U8", []int{n, out, in / 32}, scalesOfRow)}, nil
	case !isModule || len(part.Shape) != 2:
		return refuse("experts in one tensor have no such format")
	case p.encoding == quant.INT4:
		words := (cols + 7) / 8
		return []safetensors.OutTensor{
			tensor(stem+".weight_packed", "I32", []int{rows, words}, func(row int, l quantizedLines,
				out []byte) []byte {
				return append(codesOfRow(row, l, out), make([]byte, 4*words-bytes)...)
			}),
			tensor(stem+".weight_scale", "BF16", []int{rows, blocks}, scalesOfRow),
			{Name: stem + ".weight_shape", DType: "I64", Shape: []int{2}, Write: func(w io.Writer) error {
				return binary.Write(w, binary.LittleEndian, []int64{int64(rows), int64(cols)})
			}}}, nil
	case p.encoding == quant.MXFP4 && cols%32 == 0:
		return []safetensors.OutTensor{tensor(stem+".weight_packed", "U8", []int{rows, bytes}, codesOfRow),
			tensor(stem+".weight_scale", "U8", []int{rows, blocks}, scalesOfRow)}, nil
	case p.encoding == quant.MXFP8:
		return []safetensors.OutTensor{tensor(part.Name, "F8_E4M3", part.Shape, codesOfRow),
			tensor(stem+".weight_scale", "U8", []int{rows, blocks}, scalesOfRow)}, nil
	}
	return refuse(fmt.Sprintf("%d columns are no multiple of 32", cols))
}

// quantizedLines is a quantized weight of one group in host memory, whose row `from` of all groups is its first.
type quantizedLines struct {
	kernels.QuantizedWeight
	from int
}

// codesOfRow appends the codes of a row.
func codesOfRow(row int, l quantizedLines, out []byte) []byte {
	return append(out, l.Codes.Raw()[(row-l.from)*l.Codes.Cols:][:l.Codes.Cols]...)
}

func scalesOfRow(row int, l quantizedLines, out []byte) []byte { return l.scales(out, row) }

// scales appends the scales of a row.
func (l quantizedLines) scales(out []byte, row int) []byte {
	size := l.Scales.DType.Size()
	for b := range l.Scales.Rows {
		out = append(out, l.Scales.Raw()[(b*l.Rows+row-l.from)*size:][:size]...)
	}
	return out
}

// lines visits the rows of a part in their order on disk, group by group, and writes what write appends for them. Rows
// count through all groups of the weight.
func (p *Param) lines(dev kernels.Device, part Part) func(w io.Writer, write func(row int, l quantizedLines,
	out []byte) []byte) error {
	return func(w io.Writer, write func(row int, l quantizedLines, out []byte) []byte) (failed error) {
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
				l := quantizedLines{hostCopy(home, q.Group(g)), from}
				var out []byte
				for _, row := range inMemory[low-first : high-first] {
					out = write(first+row, l, out)
				}
				_, failed = w.Write(out)
			}
		})
		return failed
	}
}
