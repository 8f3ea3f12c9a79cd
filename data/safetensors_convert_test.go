package data

import (
	"encoding/binary"
	"math"
	"testing"

	"lockstep/kernels"
)

func convert(t *testing.T, dtype string, raw []byte, n int) ([]float32, []uint16) {
	t.Helper()
	info := TensorInfo{Name: "t", DType: dtype, Shape: []int{n}, Data: raw}
	f, b := make([]float32, n), make([]uint16, n)
	if err := ToF32(f, info); err != nil {
		t.Fatal(err)
	}
	if err := ToBF16(b, info); err != nil {
		t.Fatal(err)
	}
	return f, b
}

func TestConvertExactTypes(t *testing.T) {
	f32 := []float32{1, -2.5, 0x1.01p0, 0x1.03p0, 0x1.0101p0, math.MaxFloat32, 0x1p-149, float32(math.Inf(-1))}
	var raw, bf []byte
	for _, v := range f32 {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
		bf = binary.LittleEndian.AppendUint16(bf, uint16(math.Float32bits(v)>>16))
	}
	got, rounded := convert(t, "F32", raw, len(f32))
	for i, v := range f32 {
		if got[i] != v || rounded[i] != kernels.RoundBF16(v) {
			t.Errorf("%x: %x, %#x", v, got[i], rounded[i])
		}
	}
	if rounded[2] != 0x3f80 || rounded[3] != 0x3f82 || rounded[4] != 0x3f81 { // ties to even, then above a tie
		t.Errorf("bf16 of ties %#x", rounded[2:5])
	}
	got, rounded = convert(t, "BF16", bf, len(f32))
	for i := range f32 {
		if want := binary.LittleEndian.Uint16(bf[2*i:]); rounded[i] != want || got[i] != kernels.FromBF16(want) {
			t.Errorf("bf16 %#x: %x, %#x", want, got[i], rounded[i])
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
		f, b := convert(t, c.dtype, raw, n)
		for i := range n {
			want := formula(uint(i), c.mantissa, c.exponent)
			same := math.Float64bits(float64(f[i])) == math.Float64bits(want) || want != want && f[i] != f[i]
			if !same || b[i] != kernels.RoundBF16(f[i]) {
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
	f, b := convert(t, "F8_E8M0", raw, 256)
	for e, x := range f[:255] {
		if float64(x) != math.Pow(2, float64(e-127)) || kernels.FromBF16(b[e]) != x {
			t.Errorf("%d: %g and %#x", e, x, b[e])
		}
	}
	if f[255] == f[255] || kernels.FromBF16(b[255]) == kernels.FromBF16(b[255]) {
		t.Errorf("255: %g and %#x", f[255], b[255])
	}
}

// bf16 of an F64 is rounded once: by way of fp32, the first of these would go down.
func TestConvertDoubleRoundsOnce(t *testing.T) {
	in := []float64{0x1.0100000001p0, 0x1.00ffffffffp0, -0x1.0100000001p0, 0x1.01p0, 1e300, -1e300, 1e-300, math.NaN(),
		0x1.feffffffp127, 0x1.ff0p127}
	want := []uint16{0x3f81, 0x3f80, 0xbf81, 0x3f80, 0x7f80, 0xff80, 0, 0x7fc0, 0x7f7f, 0x7f80}
	var raw []byte
	for _, v := range in {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
	}
	f, b := convert(t, "F64", raw, len(in))
	for i, v := range in {
		if b[i] != want[i] || f[i] != float32(v) && v == v {
			t.Errorf("%x: %x, %#x want %#x", v, f[i], b[i], want[i])
		}
	}
}

func TestConvertRefusals(t *testing.T) {
	info := TensorInfo{Name: "t", DType: "I64", Shape: []int{1}, Data: make([]byte, 8), File: "x.safetensors"}
	checkError(t, ToF32(make([]float32, 1), info), "x.safetensors", `"t"`, "I64")
	checkError(t, ToBF16(make([]uint16, 1), info), "x.safetensors", `"t"`, "I64")
	defer func() {
		if recover() == nil {
			t.Error("a slice of another length must panic")
		}
	}()
	_ = ToF32(make([]float32, 2), info)
}
