package checkpoint

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"lockstep/data/safetensors"
	"lockstep/kernels"
)

// Every number is finite or not for firstNotFinite as for math, wherever it lies among others.
func TestFirstNotFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for code := range 1 << 16 {
		raw := make([]byte, 2*77)
		at := rng.IntN(77)
		raw[2*at], raw[2*at+1] = byte(code), byte(code>>8)
		want := -1
		if x := float64(kernels.FromBF16(uint16(code))); math.IsNaN(x) || math.IsInf(x, 0) {
			want = at
		}
		if got := firstNotFinite(raw, kernels.BF16); got != want {
			t.Fatalf("bf16 %04x at %d: found at %d", code, at, got)
		}
	}
	for _, n := range []int{0, 1, 2, 15, 16, 17, 33, 1000} {
		values := make([]float32, n)
		for i := range values {
			values[i] = math.MaxFloat32 * (2*rng.Float32() - 1)
		}
		if got := firstNotFinite(Round(values, kernels.F32), kernels.F32); got != -1 {
			t.Errorf("%d finite numbers: %d is not", n, got)
		}
		for i := range values {
			kept := values[i]
			for _, bits := range []uint32{0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x7fc00000} {
				values[i] = math.Float32frombits(bits)
				if got := firstNotFinite(Round(values, kernels.F32), kernels.F32); got != i {
					t.Fatalf("%08x at %d of %d: found at %d", bits, i, n, got)
				}
			}
			values[i] = kept
		}
	}
}

// A weight with a number that is not finite, or that the storage type does not hold, is an error with its place.
func TestNotFiniteWeights(t *testing.T) {
	const n = pieceElements + 100
	for _, c := range []struct {
		dtype string
		bits  uint32
		words string
	}{
		{"BF16", 0x7fc0, "NaN"}, {"BF16", 0xff80, "-Inf"}, {"F32", 0xffc00001, "NaN"}, {"F32", 0x7f800000, "+Inf"},
		{"F16", 0x7e00, "NaN"}, {"F16", 0x7c00, "+Inf"}, {"F8_E4M3", 0x7f, "NaN"},
	} {
		size := map[string]int{"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}[c.dtype]
		for _, at := range []int{0, 77, n - 1} {
			raw := make([]byte, size*n)
			for k := range size {
				raw[at*size+k] = byte(c.bits >> (8 * k))
			}
			w := plainWeight(safetensors.TensorInfo{Name: "w", DType: c.dtype, Shape: []int{n / 2, 2}, Data: raw,
				File: "f"})
			want := fmt.Sprintf("f: tensor w: element [%d %d] is %s: ", at/2, at%2, c.words)
			errs := []error{w.Read(make([]float32, n))}
			for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
				errs = append(errs, w.Convert(d, func(from int, raw []byte) error {
					if at < from+len(raw)/d.Size() {
						t.Errorf("%s as %s: what is not finite was used", c.dtype, d)
					}
					return nil
				}))
			}
			for i, err := range errs {
				if err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Errorf("%s, %d: %v, want %s", c.dtype, i, err, want)
				}
			}
		}
	}
	large := plainWeight(safetensors.TensorInfo{Name: "w", DType: "F32", Shape: []int{1},
		Data: []byte{255, 255, 127, 127}, File: "f"})
	err := large.Convert(kernels.BF16, func(int, []byte) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "3.4028235e+38, more than bf16 holds") {
		t.Errorf("the largest number as bf16: %v", err)
	}
	if err := large.Read(make([]float32, 1)); err != nil {
		t.Error(err)
	}
}
