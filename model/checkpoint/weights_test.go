package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// What is converted piece by piece on all cores is what one conversion of all gives, and comes in order.
func TestStoredInPieces(t *testing.T) {
	const n = 1<<22 + 1<<14 + 77
	raw := make([]byte, 4*n)
	rand.NewChaCha8([32]byte{1}).Read(raw)
	for i := range raw {
		raw[i] &= 0x3f // finite in each type
	}
	for _, c := range []struct {
		dtype string
		size  int
		to    kernels.DType
	}{{"BF16", 2, kernels.F32}, {"F16", 2, kernels.BF16}, {"F32", 4, kernels.BF16}, {"F8_E4M3", 1, kernels.F32},
		{"F32", 4, kernels.F32}, {"BF16", 2, kernels.BF16}} {
		info := safetensors.TensorInfo{Name: "w", DType: c.dtype, Shape: []int{n}, Data: raw[:c.size*n], File: "f"}
		values := make([]float32, n)
		if err := safetensors.ToF32(values, info); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, c.to.Size()*n)
		for i, x := range values {
			Put(want[i*c.to.Size():], c.to, x)
		}
		if c.dtype == DTypeName(c.to) {
			want = info.Data
		}
		var got []byte
		err := Weight{Shape: info.Shape, plain: &info}.Convert(c.to, func(from int, raw []byte) error {
			if from*c.to.Size() != len(got) {
				t.Errorf("%s as %s: elements from %d on after %d", c.dtype, c.to, from, len(got)/c.to.Size())
			}
			got = append(got, raw...)
			return nil
		})
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s as %s: other bytes than one conversion of all (%v)", c.dtype, c.to, err)
		}
	}
	info := safetensors.TensorInfo{Name: "w", DType: "I64", Shape: []int{8}, Data: raw[:64], File: "f"}
	err := Weight{Shape: info.Shape, plain: &info}.Convert(kernels.F32, func(int, []byte) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "I64") {
		t.Errorf("integers: %v", err)
	}
}
