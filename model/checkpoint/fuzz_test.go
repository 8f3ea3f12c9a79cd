package checkpoint

import (
	"strings"
	"testing"

	"lockstep/data/pyjson"
	"lockstep/data/safetensors"
)

// No config.json makes reading its quantization_config panic, and what it refuses it refuses in one line.
func FuzzParseFormat(f *testing.F) {
	for _, q := range []string{
		`{"quant_method": "fp8", "weight_block_size": [128, 128]}`, `{"quant_method": "mxfp4"}`, `null`, `"fp8"`,
		`{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}`,
		`{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {"weights": ` +
			`{"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true}}}}`,
		`{"quant_method": "compressed-tensors", "format": "float-quantized", "kv_cache_scheme": null, ` +
			`"config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "block", ` +
			`"block_structure": [128, 128], "symmetric": true}}}}`,
	} {
		f.Add([]byte(`{"model_type": "gpt_oss", "quantization_config": ` + q + `}`))
		f.Add([]byte(`{"text_config": {"quantization_config": ` + q + `}}`))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		config := pyjson.Plain(text)
		s, err := ParseFormat(config)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %v", err)
			}
			return
		}
		if s == nil {
			return
		}
		plain, err := WithoutQuantization(text)
		if err != nil {
			return // a null, or a name twice
		}
		if again, err := ParseFormat(pyjson.Plain(plain)); err != nil || again != nil {
			t.Errorf("%s: %v after it was removed (%v)", plain, again, err)
		}
	})
}

// Whatever shapes and types tensors have, opening them ends in one line of error or in a weight that can be read whole.
func FuzzFormatOpen(f *testing.F) {
	f.Add(uint8(0), []byte{40, 24}, []byte{3, 2}, []byte{}, []byte{1, 2, 3, 4})
	f.Add(uint8(0), []byte{2, 40, 24}, []byte{2, 3, 2}, []byte{}, []byte{0xff})
	f.Add(uint8(1), []byte{3, 8}, []byte{3, 2}, []byte{2}, []byte{3, 0, 0, 0, 64, 0, 0, 0})
	f.Add(uint8(2), []byte{2, 5, 2, 16}, []byte{2, 5, 2}, []byte{}, []byte{254, 17})
	f.Add(uint8(2), []byte{0, 5, 0, 16}, []byte{0, 5, 0}, []byte{}, []byte{})
	f.Add(uint8(3), []byte{40, 24}, []byte{40, 1}, []byte{}, []byte{1, 2, 3, 4})
	f.Add(uint8(4), []byte{5, 0}, []byte{1}, []byte{}, []byte{1, 2, 3, 4})
	f.Add(uint8(5), []byte{5, 32}, []byte{5, 2}, []byte{}, []byte{120, 17})
	f.Add(uint8(6), []byte{40, 24}, []byte{3, 2}, []byte{}, []byte{1, 255})
	f.Fuzz(func(t *testing.T, kind uint8, codes, scales, shape, fill []byte) {
		formats := []*Format{fp8Blocks(16, 16), int4Groups(32), mxfp4(), fp8Rows(false), fp8Rows(true), mxfp4Packed()}
		types := [][]string{
			{"F8_E4M3", "F32", "F32"}, {"I32", "BF16", "I32"}, {"U8", "U8", "U8"}, {"F8_E4M3", "BF16", ""},
			{"F8_E4M3", "F32", ""}, {"U8", "U8", ""},
			{"F8_E4M3", "F8_E8M0", "F32"}, {"I32", "F16", "I64"},
		}
		which := int(kind) % len(types)
		s := formats[which%len(formats)]
		var parts []safetensors.TensorInfo
		for i, dims := range [][]byte{codes, scales, shape} {
			info := safetensors.TensorInfo{Name: "w", DType: types[which][i], File: "f"}
			for _, d := range dims[:min(len(dims), 4)] {
				info.Shape = append(info.Shape, int(d%65))
			}
			width := map[string]int{"F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4,
				"I64": 8}[info.DType]
			if info.Len() > 1<<14 {
				return
			}
			info.Data = make([]byte, width*info.Len())
			for j := range info.Data {
				if len(fill) > 0 {
					info.Data[j] = fill[j%len(fill)]
				}
			}
			parts = append(parts, info)
		}
		w, err := s.open(parts[0], parts[1:1+len(s.others)])
		if err == nil {
			err = w.read(make([]float32, safetensors.TensorInfo{Shape: w.Shape}.Len()))
		}
		if err != nil && (strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f: tensor w")) {
			t.Errorf("error %v", err)
		}
	})
}
