package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// compressedTensors is what quantization_config says of a release that github.com/vllm-project/compressed-tensors has
// written (QuantizationConfig, QuantizationScheme, QuantizationArgs).
type compressedTensors struct {
	Format    string                     `json:"format"`
	Groups    map[string]compressedGroup `json:"config_groups"`
	Cache     json.RawMessage            `json:"kv_cache_scheme"`
	Transform struct {
		Groups map[string]any `json:"config_groups"`
	} `json:"transform_config"`
}

// compressedGroup is how some layers are stored; weights null: only their activations are rounded.
type compressedGroup struct {
	Format  string             `json:"format"`
	Weights *compressedWeights `json:"weights"`
	Inputs  *activations       `json:"input_activations"`
}

// activations is how inputs are rounded.
type activations struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	Strategy  string `json:"strategy"`
	Size      int    `json:"group_size"`
	Symmetric bool   `json:"symmetric"`
	Dynamic   any    `json:"dynamic"`
}

// encoding is what inputs are rounded to, of what is computed here: MXFP8. Other schemes are not, and their inputs stay
// as they are.
func (a *activations) encoding() quant.Encoding {
	wide := quant.MXFP8.Format().Wide
	if a != nil && *a == (activations{8, "float", "group", wide, true, true}) {
		return quant.MXFP8
	}
	return quant.AsTrained
}

type compressedWeights struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	Strategy  string `json:"strategy"`
	Size      int    `json:"group_size"`
	Block     []int  `json:"block_structure"`
	Symmetric bool   `json:"symmetric"`
	Order     any    `json:"actorder"`
}

// parse is the format of the weights, which must be the same for all.
func (c *compressedTensors) parse(refuse func(string, ...any) (*Format, error)) (*Format, error) {
	switch {
	case len(c.Groups) != 1:
		return refuse("compressed-tensors of format %q with %d config_groups", c.Format, len(c.Groups))
	case len(c.Cache) > 0 && string(c.Cache) != "null":
		return refuse("compressed-tensors with a kv_cache_scheme")
	case len(c.Transform.Groups) > 0: // weights that are true only between rotations of the activations
		return refuse("compressed-tensors with a transform_config")
	}
	for _, g := range c.Groups {
		w := g.Weights
		switch {
		case g.Format != "" && g.Format != c.Format:
			return refuse("compressed-tensors of format %q with a group of %q", c.Format, g.Format)
		case w == nil:
			return refuse("compressed-tensors without weights in config_groups")
		}
		f, err := w.parse(c.Format, refuse)
		if err == nil {
			f.Acts = g.Inputs.encoding()
		}
		return f, err
	}
	panic("unreachable: a map of length 1 has an entry")
}

// parse is how the weights of a format are kept.
func (w *compressedWeights) parse(format string, refuse func(string, ...any) (*Format, error)) (*Format, error) {
	is := func(kind string, bits int, strategies ...string) bool {
		return w.Type == kind && w.Bits == bits && slices.Contains(strategies, w.Strategy) && w.Symmetric &&
			w.Order == nil
	}
	switch format {
	case "float-quantized", "naive-quantized": // the second where activations are not rounded
		if is("float", 8, "channel", "tensor", "block") {
			return w.fp8()
		}
	case "pack-quantized":
		if is("int", 4, "group") {
			if w.Size <= 0 || w.Size > 1<<24 {
				return nil, fmt.Errorf("group_size is %d: want a positive number", w.Size)
			}
			return int4Groups(w.Size), nil
		}
	case "mxfp4-pack-quantized":
		if is("float", 4, "group") && w.Size == quant.MXFP4Block {
			return mxfp4Packed(), nil
		}
	case "mxfp8-quantized":
		if is("float", 8, "group") && w.Size == quant.MXFP8.Format().Wide {
			return mxfp8(), nil
		}
	default:
		return refuse("compressed-tensors of format %q", format)
	}
	return refuse("compressed-tensors of format %q with weights of num_bits %d, type %q, strategy %q, group_size %d, "+
		"symmetric %v, actorder %v",
		format, w.Bits, w.Type, w.Strategy, w.Size, w.Symmetric, w.Order)
}

// fp8 is a weight of E4M3 codes with weight_scale, and input_scale where activations have calibrated scales.
func (w *compressedWeights) fp8() (*Format, error) {
	rows := fp8Rows(w.Strategy == "tensor")
	if w.Strategy != "block" {
		return rows, nil
	}
	if err := checkBlock("block_structure", w.Block); err != nil {
		return nil, err
	}
	s := fp8Blocks(w.Block[0], w.Block[1])
	s.weight, s.codes, s.others, s.Ignored = rows.weight, rows.codes, rows.others, rows.Ignored
	return s, nil
}

// checkBlock is an error unless a field holds the rows and columns of a block.
func checkBlock(field string, block []int) error {
	if len(block) != 2 || slices.Min(block) <= 0 || slices.Max(block) > 1<<24 {
		return fmt.Errorf("%s is %v: want two positive numbers", field, block)
	}
	return nil
}

// mxfp8 is mxfp8-quantized of compressed-tensors: a weight [out, in] is E4M3 codes, and weight_scale U8 [out,
// ceil(in/32)] the exponents of powers of two.
func mxfp8() *Format {
	wide := quant.MXFP8.Format().Wide
	return &Format{
		Name: fmt.Sprintf("MXFP8 blocks of %d", wide), weight: ".weight", codes: ".weight", dtype: "F8_E4M3",
		others: []string{".weight_scale"},
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			scales := others[0]
			if len(codes.Shape) != 2 {
				return Weight{}, misfit(codes, "a matrix")
			}
			if want := []int{codes.Shape[0], (codes.Shape[1] + wide - 1) / wide}; !slices.Equal(scales.Shape, want) {
				return Weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each block of %s %v", want, codes.Name,
					codes.Shape))
			}
			if err := wantType(scales, "U8", "F8_E8M0"); err != nil {
				return Weight{}, err
			}
			return e4m3(codes, scales, 1, wide).weight(codes.Shape), nil
		},
	}
}

// int4Groups is pack-quantized of compressed-tensors: a weight [out, in] is 4-bit codes, eight in a word of
// weight_packed I32 [out, ceil(in/8)], weight_scale [out, ceil(in/group)], and weight_shape, the numbers out and in.
func int4Groups(group int) *Format {
	return &Format{
		Name: fmt.Sprintf("INT4 groups of %d", group), weight: ".weight", codes: ".weight_packed", dtype: "I32",
		others: []string{".weight_scale", ".weight_shape"},
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			scales := others[0]
			shape, err := readShape(others[1])
			if err != nil {
				return Weight{}, err
			}
			rows, cols := shape[0], shape[1]
			if want := []int{rows, (cols + 7) / 8}; !slices.Equal(codes.Shape, want) {
				return Weight{}, misfit(codes, fmt.Sprintf("%v: %s says that the weight is %v", want, others[1].Name,
					shape))
			}
			if want := []int{rows, (cols + group - 1) / group}; !slices.Equal(scales.Shape, want) {
				return Weight{}, misfit(scales, fmt.Sprintf("%v: a scale for each group of a weight %v", want, shape))
			}
			if err := wantType(scales, "BF16", "F16", "F32"); err != nil {
				return Weight{}, err
			}
			kept := &Codes{Format: quant.Format{Code: quant.CodeINT4, Scale: scaleType(scales.DType), Wide: group},
				rows: rows, cols: cols, stride: codes.Shape[1] * 4, high: 1, codes: codes, scales: scales}
			return kept.weight(shape), nil
		},
	}
}

// readShape is weight_shape: out and in.
func readShape(t safetensors.TensorInfo) ([]int, error) {
	if !slices.Equal(t.Shape, []int{2}) {
		return nil, misfit(t, "[2]: the rows and columns of the weight")
	}
	if err := wantType(t, "I32", "I64"); err != nil {
		return nil, err
	}
	shape, size := make([]int, 2), len(t.Data)/2
	for i := range shape {
		n := int64(int32(binary.LittleEndian.Uint32(t.Data[i*size:])))
		if size == 8 {
			n = int64(binary.LittleEndian.Uint64(t.Data[i*size:]))
		}
		if n <= 0 || n > 1<<31 {
			return nil, fmt.Errorf("%s: tensor %s says %d: want the rows and columns of the weight: fetch the "+
				"checkpoint again", t.File, t.Name, n)
		}
		shape[i] = int(n)
	}
	return shape, nil
}
