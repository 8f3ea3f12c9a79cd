package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/quant"
)

// bitsandbytes is what quantization_config says of weights that transformers has saved in a format of
// github.com/bitsandbytes-foundation/bitsandbytes (BitsAndBytesConfig).
type bitsandbytes struct {
	In4Bits bool   `json:"load_in_4bit"`
	Type    string `json:"bnb_4bit_quant_type"`
	Nested  bool   `json:"bnb_4bit_use_double_quant"`
	Storage string `json:"bnb_4bit_quant_storage"`
}

// parse is the format of the weights: NF4 in bytes.
func (b *bitsandbytes) parse(refuse func(string, ...any) (*Format, error)) (*Format, error) {
	kind, storage := cmp.Or(b.Type, "fp4"), cmp.Or(b.Storage, "uint8") // BitsAndBytesConfig's defaults
	switch {
	case !b.In4Bits:
		return refuse("bitsandbytes without load_in_4bit")
	case kind != "nf4":
		return refuse("bitsandbytes of bnb_4bit_quant_type %q", kind)
	case storage != "uint8":
		return refuse("bitsandbytes of bnb_4bit_quant_storage %q", storage)
	}
	return nf4(b.Nested), nil
}

// nf4 is NF4 of bitsandbytes: a weight is codes U8 [ceil(n/2), 1], numbers in the order of its shape, which quant_state
// says, in blocks that go on from row to row. absmax F32 has one for each block; where they are nested it is codes U8
// of nested_quant_map, again in blocks with a nested_absmax. Absmax are decoded when the weight is read.
func nf4(nested bool) *Format {
	others := []string{".weight.quant_state.bitsandbytes__nf4", ".weight.quant_map", ".weight.absmax"}
	if nested {
		others = append(others, ".weight.nested_absmax", ".weight.nested_quant_map")
	}
	return &Format{
		Name: "NF4", weight: ".weight", codes: ".weight", dtype: "U8", others: others,
		open: func(codes safetensors.TensorInfo, others []safetensors.TensorInfo) (Weight, error) {
			state, err := parseQuantState(others[0], nested)
			if err != nil {
				return Weight{}, err
			}
			n := state.numbers()
			if want := []int{(n + 1) / 2, 1}; !slices.Equal(codes.Shape, want) {
				return Weight{}, misfit(codes, fmt.Sprintf("%v: %s says that the weight is %v", want, others[0].Name,
					state.Shape))
			}
			if err := checkTable(others[1]); err != nil {
				return Weight{}, err
			}
			absmax := &nf4Absmax{state: state, nested: nested, parts: others[2:]}
			if err := absmax.check((n + state.Block - 1) / state.Block); err != nil {
				return Weight{}, err
			}
			return Weight{Shape: state.Shape, Codes: nf4Rows(codes, absmax), read: func(dst []float32) error {
				return readNF4(dst, codes, absmax)
			}}, nil
		},
	}
}

// nf4LeastWide is the fewest columns to a scale that a device keeps: scales take as much memory as codes at 8.
const nf4LeastWide = 16

// nf4Rows is a matrix of NF4 as a device keeps it, with scales of as many columns as divide both a row and a block: no
// such run crosses a block. Nil where those are few.
func nf4Rows(codes safetensors.TensorInfo, absmax *nf4Absmax) *Codes {
	shape := absmax.state.Shape
	if len(shape) != 2 {
		return nil
	}
	rows, cols := shape[0], shape[1]
	wide := absmax.state.Block
	for cols%wide != 0 {
		wide /= 2 // a power of two
	}
	if wide < nf4LeastWide {
		return nil
	}
	return &Codes{Format: quant.FormatNF4(wide), rows: rows, cols: cols, stride: cols / 2, high: 1, codes: codes,
		nf4: absmax}
}

// quantState is the JSON of a tensor quant_state (QuantState.as_dict).
type quantState struct {
	Type         string   `json:"quant_type"`
	Block        int      `json:"blocksize"`
	Shape        []int    `json:"shape"`
	NestedBlock  int      `json:"nested_blocksize"`
	NestedType   string   `json:"nested_dtype"`
	NestedOffset *float64 `json:"nested_offset"`
}

// numbers is how many a weight has.
func (s *quantState) numbers() int { return safetensors.TensorInfo{Shape: s.Shape}.Len() }

// nf4Blocks are the sizes of blocks that bitsandbytes has.
var nf4Blocks = []int{32, 64, 128, 256, 512, 1024, 2048, 4096}

// parseQuantState is a tensor's quant_state, checked.
func parseQuantState(t safetensors.TensorInfo, nested bool) (s quantState, err error) {
	if err := wantType(t, "U8"); err != nil {
		return s, err
	}
	refuse := func(format string, args ...any) (quantState, error) {
		return s, fmt.Errorf("%s: tensor %s: %s", t.File, t.Name, fmt.Sprintf(format, args...))
	}
	if err := json.Unmarshal(t.Data, &s); err != nil {
		return refuse("%v: fetch the checkpoint again", err)
	}
	numbers := 1
	for _, d := range s.Shape {
		if d <= 0 || d > 1<<40/numbers {
			return refuse("shape is %v: want the shape of the weight", s.Shape)
		}
		numbers *= d
	}
	switch {
	case s.Type != "nf4":
		return refuse(`quant_type is %q: want "nf4"`, s.Type)
	case !slices.Contains(nf4Blocks, s.Block):
		return refuse("blocksize is %d: want one of %v", s.Block, nf4Blocks)
	case len(s.Shape) == 0:
		return refuse("there is no shape: want that of the weight")
	case !nested:
	case s.NestedBlock <= 0 || s.NestedBlock > 1<<24:
		return refuse("nested_blocksize is %d: want a positive number", s.NestedBlock)
	case s.NestedType != "float32":
		return refuse(`nested_dtype is %q: want "float32"`, s.NestedType)
	case s.NestedOffset == nil:
		return refuse("there is no nested_offset")
	case math.Abs(*s.NestedOffset) > math.MaxFloat32:
		return refuse("nested_offset is %g, more than fp32 holds", *s.NestedOffset)
	}
	return s, nil
}

// checkTable is an error unless quant_map holds the numbers of NF4: the kernels of bitsandbytes have them built in.
func checkTable(t safetensors.TensorInfo) error {
	if err := checkVector(t, len(quant.NF4), "a number for each code", "F32"); err != nil {
		return err
	}
	table, err := readScales(t)
	if err == nil && !slices.Equal(table, quant.NF4[:]) {
		err = fmt.Errorf("%s: tensor %s holds other numbers than NF4: fetch the checkpoint again", t.File, t.Name)
	}
	return err
}

// checkVector is an error unless a tensor has n elements of a type.
func checkVector(t safetensors.TensorInfo, n int, what, dtype string) error {
	if !slices.Equal(t.Shape, []int{n}) {
		return misfit(t, fmt.Sprintf("[%d]: %s", n, what))
	}
	return wantType(t, dtype)
}

// nf4Absmax is the absmax of a weight's blocks as the checkpoint has them, and once they are read in fp32.
type nf4Absmax struct {
	state  quantState
	nested bool
	parts  []safetensors.TensorInfo // absmax, nested_absmax, nested_quant_map
	values []float32
}

// check checks the tensors of so many blocks.
func (a *nf4Absmax) check(blocks int) error {
	if !a.nested {
		return checkVector(a.parts[0], blocks, "one for each block of the weight", "F32")
	}
	err := checkVector(a.parts[0], blocks, "one for each block of the weight", "U8")
	if err == nil {
		err = checkVector(a.parts[1], (blocks+a.state.NestedBlock-1)/a.state.NestedBlock,
			"one for each block of "+a.parts[0].Name, "F32")
	}
	if err == nil {
		err = checkVector(a.parts[2], 256, "a number for each code of "+a.parts[0].Name, "F32")
	}
	return err
}

// read decodes the absmax of codes. No number is larger than its block's.
func (a *nf4Absmax) read(codes safetensors.TensorInfo) (err error) {
	if !a.nested {
		a.values, err = readScales(a.parts[0])
		return err
	}
	absmax, err := readScales(a.parts[1])
	if err != nil {
		return err
	}
	table, err := readScales(a.parts[2])
	if err != nil {
		return err
	}
	a.values = quant.NestedAbsmax(a.parts[0].Data, (*[256]float32)(table), absmax, a.state.NestedBlock,
		float32(*a.state.NestedOffset))
	return finite(a.values, codes)
}

// readNF4 decodes a weight.
func readNF4(dst []float32, codes safetensors.TensorInfo, from *nf4Absmax) error {
	if err := from.read(codes); err != nil {
		return err
	}
	block := from.state.Block
	f := quant.FormatNF4(block)
	InParallel(len(from.values), 1, func(first, last int) {
		inOrder := make([]byte, block/2)
		for b := first; b < last; b++ {
			n := min(block, len(dst)-b*block)
			quant.SwapNibbles(inOrder[:(n+1)/2], codes.Data[b*block/2:])
			f.Decode(dst[b*block:][:n], inOrder, 0, from.values[b])
		}
	})
	return nil
}
