package safetensors

import (
	"bytes"
	"os"
	"testing"
)

// Whatever the bytes, parsing ends in one line of error or in tensors that cover the data exactly and survive writing.
func FuzzSafetensors(f *testing.F) {
	golden, err := os.ReadFile("testdata/adapter.safetensors")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden[:3000])
	f.Add(rawFile(`{}`, 0))
	f.Add(rawFile(`{"a":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[],`+
		`"data_offsets":[1,5]}}  `, 5))
	f.Add(rawFile(`{"__metadata__":{"x":"y"},"\u0061":{"shape":[0],"dtype":"BF16","data_offsets":[0,0]}}`, 0))
	f.Add(rawFile(`{"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]},"a":{}}`, 1))
	f.Fuzz(func(t *testing.T, file []byte) {
		h, err := parseSafetensors(file)
		if err != nil {
			if bytes.ContainsAny([]byte(err.Error()), "\n\r") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		covered := uint64(h.dataAt)
		var out []OutTensor
		for _, e := range h.entries {
			value := file[uint64(h.dataAt)+e.begin : uint64(h.dataAt)+e.end]
			covered += uint64(len(value))
			out = append(out, OutTensor{Name: e.name, DType: e.dtype, Shape: e.shape})
		}
		if covered != uint64(len(file)) {
			t.Errorf("%d of %d bytes covered", covered, len(file))
		}
		head, _, err := buildHeader(out, h.metadata)
		if err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
		again, err := parseSafetensors(append(head, file[h.dataAt:]...))
		if err != nil || len(again.entries) != len(h.entries) || len(again.metadata) != len(h.metadata) {
			t.Fatalf("header written again: %v", err)
		}
	})
}
