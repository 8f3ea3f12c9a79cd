package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/quant"
)

// What bitsandbytes has saved decodes to its own numbers in fp32 and bf16, absmax nested or not, blocks that cut rows
// and end early among them.
func TestNF4Golden(t *testing.T) {
	c, err := safetensors.OpenCheckpoint("testdata/nf4")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, nested := range map[string]bool{"plain": false, "nested": true, "odd": false, "short": true,
		"cut": true} {
		f := nf4(nested)
		var parts []safetensors.TensorInfo
		for _, ending := range append([]string{f.codes}, f.others...) {
			info, ok := c.Tensor(name + ending)
			if !ok {
				t.Fatalf("no tensor %s%s", name, ending)
			}
			parts = append(parts, info)
		}
		w, err := f.open(parts[0], parts[1:])
		if err != nil {
			t.Fatal(err)
		}
		w.codes = &parts[0]
		for kind, d := range map[string]kernels.DType{"fp32": kernels.F32, "bf16": kernels.BF16} {
			want, _ := c.Tensor(name + "." + kind)
			err := w.CheckShape(want.Shape, name, &Weights{Checkpoint: c}, "the golden")
			if err == nil {
				err = w.Convert(d, func(_ int, raw []byte) error {
					if !bytes.Equal(raw, want.Data) {
						return fmt.Errorf("other numbers than those of bitsandbytes")
					}
					return nil
				})
			}
			if err != nil {
				t.Errorf("%s in %s: %v", name, kind, err)
			}
		}
	}
}

// Whatever a quant_state says, it ends in one line of error, or the tensors that it asks for are read whole.
func FuzzQuantState(f *testing.F) {
	const plain = `"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [7, 9]`
	f.Add([]byte("{"+plain+"}"), false)
	f.Add([]byte("{"+plain+`, "nested_blocksize": 2, "nested_dtype": "float32", "nested_offset": -0.25}`), true)
	f.Add([]byte("{"+plain+`, "nested_blocksize": 9223372036854775807, "nested_dtype": "float32"}`), true)
	f.Add([]byte(`{"quant_type": "nf4", "blocksize": 64, "shape": [4294967296, 4294967296]}`), false)
	f.Add([]byte(`{"shape": [null, 0, -1]}`), true)
	f.Add([]byte(`null`), false)
	f.Fuzz(func(t *testing.T, text []byte, nested bool) {
		of := func(dtype string, size int, shape ...int) safetensors.TensorInfo {
			info := safetensors.TensorInfo{Name: "w", DType: dtype, Shape: shape, File: "f"}
			info.Data = bytes.Repeat([]byte{0x3d}, size*info.Len())
			return info
		}
		says := safetensors.TensorInfo{Name: "w", DType: "U8", Shape: []int{len(text)}, Data: text, File: "f"}
		s, err := parseQuantState(says, nested)
		if err == nil && s.numbers() <= 1<<14 {
			n := s.numbers()
			table := of("F32", 4, 16)
			table.Data = table.Data[:0]
			for _, x := range quant.NF4 {
				table.Data, _ = binary.Append(table.Data, binary.LittleEndian, x)
			}
			blocks := (n + s.Block - 1) / s.Block
			parts := []safetensors.TensorInfo{says, table, of("F32", 4, blocks)}
			if nested {
				parts = append(parts[:2], of("U8", 1, blocks), of("F32", 4, (blocks+s.NestedBlock-1)/s.NestedBlock),
					of("F32", 4, 256))
			}
			var w Weight
			if w, err = nf4(nested).open(of("U8", 1, (n+1)/2, 1), parts); err == nil {
				err = w.Read(make([]float32, n))
			}
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f: tensor w")) {
			t.Errorf("error %v", err)
		}
	})
}
