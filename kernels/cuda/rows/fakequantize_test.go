//go:build cuda

package rows

import (
	"encoding/binary"
	"math"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/quant"
)

// byQuant is FakeQuantize by package quant, in the memory of the CPU.
func byQuant(d kernels.Device, dst, src kernels.Tensor, f quant.Encoding) {
	each := src.Rows * src.Cols
	w := make([]float32, src.Groups*each)
	wide := kernels.Wrap(w, src.Groups*src.Rows, src.Cols)
	wide.Groups, wide.Rows = src.Groups, src.Rows
	d.Copy(wide, src)
	for g := range src.Groups {
		f.Round(w[g*each:(g+1)*each], src.Rows, src.Cols)
	}
	d.Copy(dst, wide)
}

// oddities are what a square or a group may be drawn from: several sizes, every place half way between two codes (of a
// scale of 1, or a power of two), zeros, subnormals whose scale is 0 or so coarse that the largest must be held,
// others, the largest numbers, NaN among zeros, NaN among numbers, an infinity now and then.
var oddities = []func() float32{
	func() float32 {
		return float32(cudatest.Rand.NormFloat64() * math.Pow(10, float64(cudatest.Rand.IntN(7)-3)))
	},
	func() float32 { return sign() * float32([]int{1, 3, 5, 7, 9, 11, 13, 14}[cudatest.Rand.IntN(8)]) / 2 },
	func() float32 {
		exponent := cudatest.Rand.IntN(16) - 7
		return sign() * min(448, float32(math.Ldexp(float64(16+cudatest.Rand.IntN(17)), max(exponent, -6)-4)))
	},
	func() float32 { return sign() * float32(math.Ldexp(float64(cudatest.Rand.IntN(40)), -10)) },
	func() float32 { return sign() * 0 },
	func() float32 { return sign() * math.Float32frombits(uint32(cudatest.Rand.IntN(12))) },
	func() float32 { return sign() * math.Float32frombits(uint32(cudatest.Rand.IntN(600))) },
	func() float32 {
		return sign() * math.Float32frombits(uint32(cudatest.Rand.IntN(1000))<<cudatest.Rand.IntN(17))
	},
	func() float32 { return sign() * math.Float32frombits(0x7f7fffff-uint32(cudatest.Rand.IntN(1<<24))) },
	func() float32 { return rare(2, 0) },
	func() float32 { return rare(50, float32(cudatest.Rand.NormFloat64())) },
	func() float32 {
		if cudatest.Rand.IntN(300) == 0 {
			return sign() * float32(math.Inf(1))
		}
		return rare(100, float32(cudatest.Rand.NormFloat64()))
	},
}

func sign() float32 { return float32(1 - 2*cudatest.Rand.IntN(2)) }

// rare is NaN of some bits, once in n, else x.
func rare(n int, x float32) float32 {
	if cudatest.Rand.IntN(n) > 0 {
		return x
	}
	return math.Float32frombits(0x7f800000 | uint32(cudatest.Rand.IntN(2))<<31 | 1<<22 |
		uint32(cudatest.Rand.IntN(1<<22)))
}

// odd is [groups, rows, cols] of which every so many rows and columns are drawn alike.
func odd(dtype kernels.DType, groups, rows, cols, stride, high, wide int) cudatest.Operand {
	o := cudatest.Grouped(dtype, groups, rows, cols, stride, 1)
	for g := range groups {
		drawn := map[[2]int]func() float32{}
		for i := range rows * cols {
			r, c := i/cols, i%cols
			unit := [2]int{r / high, c / wide}
			if drawn[unit] == nil {
				drawn[unit] = oddities[cudatest.Rand.IntN(len(oddities))]
			}
			at, v := ((g*rows+r)*stride+c)*dtype.Size(), drawn[unit]()
			if dtype == kernels.F32 {
				binary.LittleEndian.PutUint32(o.Raw[at:], math.Float32bits(v))
			} else {
				binary.LittleEndian.PutUint16(o.Raw[at:], kernels.RoundBF16(v))
			}
		}
	}
	return o
}

// roundings are the formats with their units.
var roundings = []struct {
	format     quant.Encoding
	high, wide int
}{{quant.INT4, 1, 32}, {quant.MXFP4, 1, 32}, {quant.MXFP8, 1, 32}, {quant.FP8, 128, 128}}

func TestFakeQuantize(t *testing.T) {
	for _, f := range roundings {
		for _, s := range [][4]int{{1, 1, 1, 1}, {1, 3, 31, 31}, {2, 5, 33, 40}, {3, 129, 200, 200}, {2, 128, 256, 264},
			{1, 300, 523, 523}, {1, 700, 640, 640}, {4, 3, 2056, 2056}} {
			for _, from := range cudatest.DTypes {
				for _, to := range cudatest.DTypes {
					x := []cudatest.Operand{cudatest.Grouped(to, s[0], s[1], s[2], s[2]+8, 1),
						odd(from, s[0], s[1], s[2], s[3], f.high,
							f.wide), odd(to, s[0], s[1], s[2], s[3], f.high, f.wide)}
					n, at := cudatest.Differences(t, x, func(d kernels.Device, x []kernels.Tensor) {
						byQuant(d, x[0], x[1], f.format)
						byQuant(d, x[2], x[2], f.format)
					}, func(d kernels.Device, x []kernels.Tensor) {
						d.(kernels.QuantizedProducts).FakeQuantize(x[0], x[1], f.format)
						d.(kernels.QuantizedProducts).FakeQuantize(x[2], x[2], f.format) // in place
					})
					if n > 0 {
						t.Errorf("%s, %s to %s, %v: %d bytes differ, first %s", f.format, from, to, s, n, at)
					}
				}
			}
		}
	}
}

// Every bf16 there is, in groups and squares of one exponent's neighbourhood and as a whole.
func TestFakeQuantizeEveryBF16(t *testing.T) {
	o := cudatest.Operand{DType: kernels.BF16, Groups: 1, Rows: 256, Cols: 256, Stride: 256}
	for i := range 1 << 16 {
		o.Raw = binary.LittleEndian.AppendUint16(o.Raw, uint16(i))
	}
	for _, cols := range []int{32, 256, 1 << 14} {
		o.Rows, o.Cols, o.Stride = 1<<16/cols, cols, cols
		for _, f := range roundings {
			for _, to := range cudatest.DTypes {
				n, at := cudatest.Differences(t, []cudatest.Operand{cudatest.Grouped(to, 1, o.Rows, cols, cols, 1), o},
					func(d kernels.Device, x []kernels.Tensor) {
						byQuant(d, x[0], x[1], f.format)
					},
					func(d kernels.Device, x []kernels.Tensor) {
						d.(kernels.QuantizedProducts).FakeQuantize(x[0], x[1], f.format)
					})
				if n > 0 {
					t.Errorf("%s to %s, rows of %d: %d bytes differ, first %s", f.format, to, cols, n, at)
				}
			}
		}
	}
}

// The comparison can fail: by squares that begin elsewhere, and by the other format.
func TestFakeQuantizeNoticed(t *testing.T) {
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, 200, 200, 1), cudatest.Normal(kernels.BF16, 200, 200, 1)}
	for name, shifted := range map[string]func(r kernels.QuantizedProducts, x []kernels.Tensor){
		"rows": func(r kernels.QuantizedProducts, x []kernels.Tensor) {
			r.FakeQuantize(x[0].RowRange(1, 200), x[1].RowRange(1, 200), quant.FP8)
		},
		"format": func(r kernels.QuantizedProducts, x []kernels.Tensor) { r.FakeQuantize(x[0], x[1], quant.INT4) },
	} {
		n, _ := cudatest.Differences(t, x, func(d kernels.Device, x []kernels.Tensor) {
			byQuant(d, x[0], x[1], quant.FP8)
		}, func(d kernels.Device, x []kernels.Tensor) {
			d.(kernels.QuantizedProducts).FakeQuantize(x[0].RowRange(0, 1), x[1].RowRange(0, 1), quant.FP8)
			shifted(d.(kernels.QuantizedProducts), x)
		})
		if n == 0 {
			t.Errorf("other %s are not noticed", name)
		}
	}
}

// Heads of widths that cut blocks too, in rows that lie apart.
func TestFakeQuantizeHeads(t *testing.T) {
	for _, width := range []int{24, 32, 48, 128} {
		for _, dtype := range cudatest.DTypes {
			x := []cudatest.Operand{odd(dtype, 1, 67, 3*width, 3*width+8, 1, 32)}
			n, at := cudatest.Differences(t, x, func(d kernels.Device, x []kernels.Tensor) {
				for h := range 3 {
					head := x[0].ColRange(h*width, (h+1)*width)
					byQuant(d, head, head, quant.MXFP8)
				}
			}, func(d kernels.Device, x []kernels.Tensor) {
				d.(kernels.QuantizedProducts).FakeQuantizeHeads(x[0], width)
			})
			if n > 0 {
				t.Errorf("%s, heads of %d: %d numbers differ, %s", dtype, width, n, at)
			}
		}
	}
}

// Blocks of rows are the CPU's, in segments of groups, some of them empty or of one row.
func TestFakeQuantizeRows(t *testing.T) {
	for _, dtype := range cudatest.DTypes {
		for _, c := range []struct {
			cols, gap int
			offsets   []int32
		}{{1, 0, []int32{0, 1}}, {31, 1, []int32{0, 0, 33, 65, 65}}, {264, 8, []int32{0, 31, 63, 95, 200}},
			{258, 0, []int32{0, 32, 64, 65, 66, 67, 68, 100}}, {700, 3, []int32{0, 130}}} {
			rows := int(c.offsets[len(c.offsets)-1])
			offsets := cudatest.Ints(1, len(c.offsets), c.offsets)
			x := []cudatest.Operand{cudatest.Grouped(dtype, 1, rows, c.cols, c.cols+c.gap, 1),
				odd(dtype, 1, rows, c.cols, c.cols+c.gap, 32, 1), offsets}
			run := func(d kernels.Device, x []kernels.Tensor) {
				g := &kernels.Groups{Offsets: x[2], Count: 1, Segments: len(c.offsets) - 1}
				d.(kernels.QuantizedProducts).FakeQuantizeRows(x[0], x[1], g)
				d.(kernels.QuantizedProducts).FakeQuantizeRows(x[1], x[1], g) // in place
			}
			if n, at := cudatest.Differences(t, x, run, run); n > 0 {
				t.Errorf("%s, %+v: %d bytes differ, first %s", dtype, c, n, at)
			}
		}
	}
}
