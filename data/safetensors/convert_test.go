package safetensors

import (
	"encoding/binary"
	"math"
	"testing"

	"lockstep/kernels"
)

func convert(t *testing.T, dtype string, raw []byte, n int) []float32 {
	t.Helper()
	f := make([]float32, n)
	if err := ToF32(f, TensorInfo{Name: "t", DType: dtype, Shape: []int{n}, Data: raw}); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestConvertExactTypes(t *testing.T) {
	f32 := []float32{1, -2.5, 0x1.01p0, 0x1.03p0, 0x1.0101p0, math.MaxFloat32, 0x1p-149, float32(math.Inf(-1))}
	var raw, bf []byte
	for _, v := range f32 {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		bf = binary.LittleEndian.AppendUint16(bf, uint16(math.Float32bits(v)>>16))
	}
	for i, got := range convert(t, "F32", raw, len(f32)) {
		if got != f32[i] {
			t.Errorf("%x: %x", f32[i], got)
		}
	}
	for i, got := range convert(t, "BF16", bf, len(f32)) {
		if want := binary.LittleEndian.Uint16(bf[2*i:]); got != kernels.FromBF16(want) {
			t.Errorf("bf16 %#x: %x", want, got)
		}
	}
}

// Every half and every FP8 code against its formula in fp64.
func TestConvertSmallFloats(t *testing.T) {
	formula := func(code, mantissa, exponent uint) float64 {
		frac, exp := float64(code&(1<<mantissa-1)), int(code>>mantissa&(1<<exponent-1))
		bias := 1<<(exponent-1) - 1
		x := math.Ldexp(1+math.Ldexp(frac, -int(mantissa)), exp-bias)
		if exp == 0 {
			x = math.Ldexp(frac, 1-bias-int(mantissa))
		}
		switch top := exp == 1<<exponent-1; {
		case exponent == 4 && top && frac == 7, exponent == 5 && top && frac != 0:
			x = math.NaN()
		case exponent == 5 && top:
			x = math.Inf(1)
		}
		if code>>(mantissa+exponent)&1 == 1 {
			x = math.Copysign(x, -1)
		}
		return x
	}
	for _, c := range []struct {
		dtype              string
		mantissa, exponent uint
	}{{"F16", 10, 5}, {"F8_E5M2", 2, 5}, {"F8_E4M3", 3, 4}} {
		n := 1 << (1 + c.mantissa + c.exponent)
		var raw []byte
		for i := range n {
			if raw = append(raw, byte(i)); c.dtype == "F16" {
				raw = append(raw, byte(i>>8))
			}
		}
		f := convert(t, c.dtype, raw, n)
		for i := range n {
			want := formula(uint(i), c.mantissa, c.exponent)
			same := math.Float64bits(float64(f[i])) == math.Float64bits(want) || want != want && f[i] != f[i]
			if !same {
				t.Fatalf("%s %#x: %x, want %x", c.dtype, i, f[i], want)
			}
		}
	}
}

// Every scale, 2^(e-127), the last of them none.
func TestConvertE8M0(t *testing.T) {
	var raw []byte
	for e := range 256 {
		raw = append(raw, byte(e))
	}
	f := convert(t, "F8_E8M0", raw, 256)
	for e, x := range f[:255] {
		if float64(x) != math.Pow(2, float64(e-127)) {
			t.Errorf("%d: %g", e, x)
		}
	}
	if f[255] == f[255] {
		t.Errorf("255: %g", f[255])
	}
}

// An F64 is rounded to the nearest fp32, ties to even.
func TestConvertDouble(t *testing.T) {
	in := []float64{0x1.000001p0, 0x1.0000010001p0, 0x1.000003p0, -0x1.0000010001p0, 1e300, -1e300, 1e-300, 0x1p-149,
		math.NaN()}
	want := []float32{1, 0x1.000002p0, 0x1.000004p0, -0x1.000002p0, float32(math.Inf(1)), float32(math.Inf(-1)), 0,
		0x1p-149, float32(math.NaN())}
	var raw []byte
	for _, v := range in {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
	}
	for i, got := range convert(t, "F64", raw, len(in)) {
		if got != want[i] && (got == got || want[i] == want[i]) {
			t.Errorf("%x: %x, want %x", in[i], got, want[i])
		}
	}
}

func TestConvertRefusals(t *testing.T) {
	info := TensorInfo{Name: "t", DType: "I64", Shape: []int{1}, Data: make([]byte, 8), File: "x.safetensors"}
	checkError(t, ToF32(make([]float32, 1), info), "x.safetensors", `"t"`, "I64")
	defer func() {
		if recover() == nil {
			t.Error("a slice of another length must panic")
		}
	}()
	_ = ToF32(make([]float32, 2), info)
}
