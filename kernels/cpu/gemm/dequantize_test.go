package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"lockstep/kernels"
	"lockstep/quant"
)

// codesOf is a weight of one group over bytes of codes and of scales.
func codesOf(f quant.Format, d kernels.DType, rows, cols int, codes, scales []byte) kernels.QuantizedWeight {
	memory := func(t kernels.DType, groups, rows, cols int) kernels.Tensor {
		b := codes // asked for first
		codes = scales
		return kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(b)), DType: t, Groups: groups, Rows: rows,
			Cols: cols, Stride: cols}
	}
	return kernels.NewQuantizedWeight(f, d, 1, rows, cols, memory)
}

// mustDecode compares [rows, cols] of a weight, from an element on, with package quant.
func mustDecode(t *testing.T, name string, e *Engine, w kernels.QuantizedWeight, row, col, rows, cols int) {
	t.Helper()
	const untouched = -12345
	ds := cols + 3
	got, want := make([]float32, rows*ds), make([]float32, cols)
	for i := range got {
		got[i] = untouched
	}
	e.dequantize(new(Scratch), got, ds, OfQuantized(w).From(row, col), rows, cols)
	for i := range rows {
		w.DecodeRow(want, row+i, col)
		for j, x := range want {
			// Of two NaN the product may be either.
			if g := got[i*ds+j]; math.Float32bits(g) != math.Float32bits(x) && !(bothNaN(w, row+i, col+j) && g != g) {
				t.Fatalf("%s, %s in %s: (%d, %d) is %#x, want %#x", name, w.Shape(), w.Format, row+i, col+j,
					math.Float32bits(g), math.Float32bits(x))
			}
		}
		for _, x := range got[i*ds+cols : (i+1)*ds] {
			if x != untouched {
				t.Fatalf("%s, %s in %s: wrote beyond row %d", name, w.Shape(), w.Format, i)
			}
		}
	}
}

// bothNaN tells whether code and scale of an element are NaN.
func bothNaN(w kernels.QuantizedWeight, row, col int) bool {
	var scale [1]float32
	w.DecodeScales(scale[:], col/w.Format.Wide*w.Rows+row)
	return scale[0] != scale[0] && w.Format.Code == quant.CodeE4M3 &&
		quant.IsNaNE4M3(w.Codes.Raw()[row*w.Codes.Cols+col])
}

// someScales are many scales of a type in its own bytes: all powers of two, or numbers of every size, subnormal, zero,
// the largest, infinite and NaN.
func someScales(rng *rand.Rand, s quant.Scale) (scales []byte, n int) {
	if s == quant.ScaleE8M0 {
		for e := range 256 {
			scales = append(scales, byte(e))
		}
		return scales, 256
	}
	bits := []uint32{0, 1 << 31, 1, 0x7fffff, 0x400000, 0x10000, 0x800000, 0x3f800000, 0x7f7fffff, 0x7f7f0000,
		0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f810000, 0x7f800001}
	for len(bits) < 1000 {
		bits = append(bits, rng.Uint32())
	}
	for _, b := range bits {
		if s == quant.ScaleBF16 {
			scales = binary.LittleEndian.AppendUint16(scales, uint16(b>>16))
		} else {
			scales = binary.LittleEndian.AppendUint32(scales, b)
		}
	}
	return scales, len(bits)
}

// Every code, at both places of a byte, with every kind of scale.
func TestDequantizeCodes(t *testing.T) {
	var every [256]byte
	for i := range every {
		every[i] = byte(i)
	}
	rng := rand.New(rand.NewPCG(3, 9))
	for _, code := range []quant.Code{quant.CodeINT4, quant.CodeE2M1, quant.CodeE4M3, quant.CodeNF4} {
		for _, scale := range []quant.Scale{quant.ScaleE8M0, quant.ScaleBF16, quant.ScaleF32} {
			scales, rows := someScales(rng, scale)
			var codes []byte
			for range rows {
				codes = append(codes, every[:]...)
			}
			f, cols := quant.Format{Code: code, Scale: scale, Wide: 1 << 20}, 256*8/code.Bits()
			for name, e := range engines(t, kernels.DotFMA) {
				for _, d := range []kernels.DType{kernels.F32, kernels.BF16} {
					mustDecode(t, name, e, codesOf(f, d, rows, cols, codes, scales), 0, 0, rows, cols)
				}
			}
		}
	}
}

// Parts of weights from any row and column on, with blocks of any width: cut at both ends, no multiple of a register,
// an odd number of columns.
func TestDequantizeParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 10))
	for range 300 {
		f := quant.Format{Code: quant.Code(rng.IntN(4)), Scale: quant.Scale(rng.IntN(3)),
			Wide: []int{1, 5, 8, 16, 24, 32, 40, 64, 128, 1 << 20}[rng.IntN(10)]}
		rows, cols := 1+rng.IntN(40), 1+rng.IntN(400)
		codes := make([]byte, rows*f.RowBytes(cols))
		scales := make([]byte, rows*f.Blocks(cols)*f.Scale.Bits()/8)
		for _, b := range [][]byte{codes, scales} {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
		}
		w := codesOf(f, kernels.DType(rng.IntN(2)), rows, cols, codes, scales)
		row, col := rng.IntN(rows), rng.IntN(cols)
		if rng.IntN(2) == 0 {
			col = col / 32 * 32
		}
		n, m := 1+rng.IntN(rows-row), 1+rng.IntN(cols-col)
		for name, e := range engines(t, kernels.DotFMA) {
			mustDecode(t, fmt.Sprintf("%s: [%d, %d] from (%d, %d)", name, n, m, row, col), e, w, row, col, n, m)
			mustPackCodes(t, name, e, w, row, col, n, m)
		}
	}
}

// mustPackCodes compares part of a weight as an operand, and transposed, with its numbers.
func mustPackCodes(t *testing.T, name string, e *Engine, w kernels.QuantizedWeight, row, col, rows, cols int) {
	t.Helper()
	part := OfQuantized(w).From(row, col)
	for _, o := range []Operand{part, part.T()} {
		n, m := rows, cols
		if o.CS != 1 {
			n, m = cols, rows
		}
		ds := e.set.roundUp(m)
		got, want := make([]float32, e.set.roundUp(n)*ds), make([]float32, m)
		e.pack(new(Scratch), got, ds, o, n, m)
		for i := range n {
			for j := range m {
				want[j] = o.at(i, j)
			}
			mustEqual(t, fmt.Sprintf("%s, %s in %s: row %d of [%d, %d]", name, w.Shape(), w.Format, i, n, m),
				got[i*ds:][:m], want)
		}
	}
}
