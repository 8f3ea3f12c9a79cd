package checkpoint

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

// QuantizationConfig is quantization_config of config.json for projections in an encoding whose inputs are rounded to
// acts; blocks: experts as gpt-oss stores them. Modules named plain are not in codes. Where the config has no groups,
// as those of compressed-tensors, it has their field of inputs itself.
func QuantizationConfig(as, acts quant.Encoding, blocks bool, plain []string) map[string]any {
	wide := as.Format().Wide
	switch {
	case as == quant.FP8:
		return withActivations(acts, map[string]any{"quant_method": "fp8", "fmt": "e4m3",
			"activation_scheme": "dynamic", "weight_block_size": []int{as.High(), wide},
			"modules_to_not_convert": plain})
	case blocks:
		return withActivations(acts, map[string]any{"quant_method": "mxfp4", "modules_to_not_convert": plain})
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
		"ignore": plain, "config_groups": map[string]any{"group_0": withActivations(acts, map[string]any{
			"targets": []string{"Linear"}, "weights": weights, "input_activations": nil, "output_activations": nil})}}
}

// withActivations says in a config that inputs are rounded, as QuantizationArgs of compressed-tensors does.
func withActivations(acts quant.Encoding, config map[string]any) map[string]any {
	if acts == quant.MXFP8 {
		config["input_activations"] = map[string]any{"num_bits": 8, "type": "float", "strategy": "group",
			"group_size": acts.Format().Wide, "symmetric": true, "dynamic": true, "scale_dtype": "torch.uint8"}
	}
	return config
}

// Quantized is a weight in codes that is written under a name.
type Quantized struct {
	Name      string
	Shape     []int // of its numbers on disk
	Encoding  quant.Encoding
	Format    quant.Format
	Reordered bool // rows lie in another order than in memory, where blocks of several rows were counted

	// EachRow calls write for the rows in their order on disk and writes what it appends.
	EachRow func(w io.Writer, write RowWriter) error
}

// RowWriter appends to out what a tensor has of row i on disk.
type RowWriter func(out []byte, i int, row QuantizedRow) []byte

// QuantizedRow is a row of a quantized weight of one group in host memory.
type QuantizedRow struct {
	Weight kernels.QuantizedWeight
	Row    int
}

func (r QuantizedRow) codes() []byte {
	return r.Weight.Codes.Raw()[r.Row*r.Weight.Codes.Cols:][:r.Weight.Codes.Cols]
}

func (r QuantizedRow) appendScales(out []byte) []byte {
	size := r.Weight.Scales.DType.Size()
	for b := range r.Weight.Scales.Rows {
		out = append(out, r.Weight.Scales.Raw()[(b*r.Weight.Rows+r.Row)*size:][:size]...)
	}
	return out
}

// Tensors are those that hold the weight, in the format of releases that its encoding has; blocks: as gpt-oss stores
// experts. A weight that no such format holds is an error.
func (q Quantized) Tensors(blocks bool) ([]safetensors.OutTensor, error) {
	cols, wide := q.Shape[len(q.Shape)-1], q.Format.Wide
	stem, isModule := strings.CutSuffix(q.Name, ".weight")
	switch {
	case q.Encoding == quant.FP8 && !q.Reordered:
		return q.fp8Blocks(), nil
	case blocks && isModule:
		return nil, q.refuse("gpt-oss has experts alone in MXFP4")
	case blocks:
		return q.mxfp4Blocks()
	case !isModule || len(q.Shape) != 2:
		return nil, q.refuse("experts in one tensor have no such format")
	case q.Encoding == quant.FP8:
		return nil, q.refuse(fmt.Sprintf("squares of %d rows would have rows of several", q.Encoding.High()))
	case cols%wide != 0: // compressed-tensors refuses to read it
		return nil, q.refuse(fmt.Sprintf("%d columns are no multiple of %d", cols, wide))
	case q.Encoding == quant.INT4:
		return q.packedINT4(stem), nil
	case q.Encoding == quant.MXFP4:
		return []safetensors.OutTensor{q.codes(stem+".weight_packed", "U8", q.Shape[0], q.Format.RowBytes(cols)),
			q.scales(stem+".weight_scale", "U8", q.Shape[0], q.Format.Blocks(cols))}, nil
	}
	return []safetensors.OutTensor{q.codes(q.Name, "F8_E4M3", q.Shape...),
		q.scales(stem+".weight_scale", "U8", q.Shape[0], q.Format.Blocks(cols))}, nil
}

func (q Quantized) refuse(what string) error {
	return fmt.Errorf("tensor %s in %s: %s: choose another format, or experts alone", q.Name, q.Encoding, what)
}

// tensor is one of those that hold the weight.
func (q Quantized) tensor(name, dtype string, shape []int, write RowWriter) safetensors.OutTensor {
	return safetensors.OutTensor{Name: name, DType: dtype, Shape: shape, Write: func(w io.Writer) error {
		return q.EachRow(w, write)
	}}
}

func (q Quantized) codes(name, dtype string, shape ...int) safetensors.OutTensor {
	return q.tensor(name, dtype, shape, func(out []byte, _ int, r QuantizedRow) []byte {
		return append(out, r.codes()...)
	})
}

func (q Quantized) scales(name, dtype string, shape ...int) safetensors.OutTensor {
	return q.tensor(name, dtype, shape, func(out []byte, _ int, r QuantizedRow) []byte { return r.appendScales(out) })
}

// fp8Blocks is what [fp8Blocks] reads.
func (q Quantized) fp8Blocks() []safetensors.OutTensor {
	rank, high := len(q.Shape), q.Encoding.High()
	rows, cols := q.Shape[rank-2], q.Shape[rank-1]
	shape := append(slices.Clone(q.Shape[:rank-2]), (rows+high-1)/high, q.Format.Blocks(cols))
	return []safetensors.OutTensor{q.codes(q.Name, "F8_E4M3", q.Shape...),
		q.tensor(q.Name+"_scale_inv", "F32", shape, func(out []byte, i int, r QuantizedRow) []byte {
			if i%rows%high != 0 {
				return out
			}
			return r.appendScales(out)
		})}
}

// mxfp4Blocks is what [mxfp4] reads: the shape is that of numbers, which are transposed.
func (q Quantized) mxfp4Blocks() ([]safetensors.OutTensor, error) {
	n, in, out := q.Shape[0], q.Shape[1], q.Shape[2]
	if in%quant.MXFP4Block != 0 {
		return nil, q.refuse(fmt.Sprintf("%d inputs are no multiple of %d", in, quant.MXFP4Block))
	}
	blocks := in / quant.MXFP4Block
	return []safetensors.OutTensor{q.codes(q.Name+"_blocks", "U8", n, out, blocks, quant.MXFP4Block/2),
		q.scales(q.Name+"_scales", "U8", n, out, blocks)}, nil
}

// packedINT4 is what [int4Groups] reads, eight codes in a word.
func (q Quantized) packedINT4(stem string) []safetensors.OutTensor {
	rows, cols := q.Shape[0], q.Shape[1]
	return []safetensors.OutTensor{
		q.codes(stem+".weight_packed", "I32", rows, cols/8),
		q.scales(stem+".weight_scale", "BF16", rows, q.Format.Blocks(cols)),
		{Name: stem + ".weight_shape", DType: "I64", Shape: []int{2}, Write: func(w io.Writer) error {
			return binary.Write(w, binary.LittleEndian, []int64{int64(rows), int64(cols)})
		}}}
}
