package gemm

import (
	"math"
	"unsafe"

	"lockstep/kernels"
	"lockstep/quant"
)

// steps32 is the number of products of one step of fp8x32, and fraction32 the number of fractional bits that its terms
// and its sum keep.
const steps32, fraction32 = 32, 13

// dropped32 are the bits of an fp32 significand that a sum of fp8x32 does not keep.
const dropped32 = 1<<(23-fraction32) - 1

// Step32 is the scalar reference of one step of fp8x32 (see kernels.Term): acc, which a step gave, plus the 32 products
// x[i]*y[i] of E4M3 values. Exponents of products and zeros are those of [Step16]. Where an operand is not finite, so
// is the result.
func Step32(acc float32, x, y *[steps32]float32) float32 {
	sum, exponent, ok := stepSum(acc, x[:], y[:], fraction32)
	if !ok {
		return stepInfinite(acc, x[:], y[:])
	}
	return math.Float32frombits(math.Float32bits(truncated(sum, exponent)) &^ dropped32)
}

// chain32 is the scalar chain of element (i, j).
func chain32(acc float32, i, j, k int, a, b Operand) float32 {
	for from := 0; from < k; from += steps32 {
		var x, y [steps32]float32
		for l := from; l < min(k, from+steps32); l++ {
			x[l-from], y[l-from] = a.at(i, l), b.at(l, j)
		}
		acc = Step32(acc, &x, &y)
	}
	return acc
}

// wide is the columns of a block of codes.
const wide = 128

// fp8x128 continues the chains of c, [m, n], over k, or starts them from +0 if fresh: both operands are in codes, and a
// block of k is a chain of codes without scales, which is then added with both.
func (e *Engine) fp8x128(s *Scratch, c []float32, ldc, m, n, k int, a, b Operand, fresh bool) {
	x, y := withoutScales(a), withoutScales(b)
	for j := 0; j < n; j += blockCols {
		cols := min(blockCols, n-j)
		for l := 0; l < k; l += wide {
			depth := min(wide, k-l)
			padded := (depth + steps32 - 1) / steps32 * steps32
			finite := e.splitB(s, y.From(l, j), depth, padded, cols)
			ws := scalesOf(b, j, l, cols)
			for i := 0; i < m; i += blockRows {
				rows := min(blockRows, m-i)
				s.block = aligned(s.block, rows*cols)
				t := stepTile{c: s.block, ldc: cols, rows: rows, cols: cols, depth: depth, a: x.From(i, l),
					b: y.From(l, j), fresh: true, kernels: e.set.steps32, products: steps32, chain: chain32}
				if e.splitA(s, t.a, rows, depth, padded) && finite {
					e.steps(s, t, padded)
				} else {
					t.scalar(0, 0, rows, cols)
				}
				promote(c[i*ldc+j:], ldc, s.block, scalesOf(a, i, l, rows), ws, fresh && l == 0)
			}
		}
	}
}

// promote adds chains of a block, p [rows, cols], to c with the scales of rows and columns, or starts c from +0.
func promote(c []float32, ldc int, p, rows, cols []float32, fresh bool) {
	for i, xs := range rows {
		line := c[i*ldc:][:len(cols)]
		if fresh {
			clear(line)
		}
		for j, ws := range cols {
			line[j] = kernels.FMA(p[i*len(cols)+j], float32(xs*ws), line[j])
		}
	}
}

// withoutScales is an operand in codes whose numbers are the codes alone.
func withoutScales(o Operand) Operand {
	q := *o.Q
	ones := make([]byte, q.Rows)
	for i := range ones {
		ones[i] = quant.CodeOfScale(1)
	}
	q.DType, q.Format = kernels.F32, quant.Format{Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: q.Cols}
	q.Scales = kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(ones)), DType: kernels.U8, Groups: 1, Rows: 1,
		Cols: q.Rows, Stride: q.Rows}
	o.Q = &q
	return o
}

// scalesOf is the scales of so many rows of codes, from a row of the operand's on, at column l.
func scalesOf(o Operand, row, l, n int) []float32 {
	at := o.first + row*o.Q.Cols + l
	scales := make([]float32, n)
	o.Q.DecodeScales(scales, at%o.Q.Cols/wide*o.Q.Rows+at/o.Q.Cols)
	return scales
}

var steps32Go = []stepKernel{steps32x1Go}

// steps32x1Go is steps1Go for fp8x32. A product of two significands in [2^14, 2^16) has zeros in its low 8 bits, and
// an accumulator in its low 10.
func steps32x1Go(count int, as, ae *uint32, _ int, bs, be *uint32, c *float32, _ int, fresh bool) bool {
	n := count * steps32
	xs, xe := unsafe.Slice((*int32)(unsafe.Pointer(as)), n), unsafe.Slice((*int32)(unsafe.Pointer(ae)), n)
	ys, ye := unsafe.Slice((*[stepCols]int32)(unsafe.Pointer(bs)), n),
		unsafe.Slice((*[stepCols]int32)(unsafe.Pointer(be)), n)
	row := (*[stepCols]float32)(unsafe.Pointer(c))
	var out [stepCols]float32
	for j := range out {
		acc := float32(0)
		if !fresh {
			acc = row[j]
		}
		for l := 0; l < n; l += steps32 {
			acc = step32Go(acc, (*[steps32]int32)(xs[l:]), (*[steps32]int32)(xe[l:]),
				(*[steps32][stepCols]int32)(ys[l:]), (*[steps32][stepCols]int32)(ye[l:]), j)
		}
		out[j] = acc
	}
	*row = out
	return true
}

// step32Go is Step32 of operands that are split.
func step32Go(acc float32, xs, xe *[steps32]int32, ys, ye *[steps32][stepCols]int32, j int) float32 {
	m, e := splitFP32(acc)
	top := int32(e)
	if m == 0 {
		top = zeroExponent
	}
	var exponents [steps32]int32
	for l := range steps32 {
		exponents[l] = xe[l] + ye[l][j]
		top = max(top, exponents[l])
	}
	if top <= zeroExponent/2 {
		return 0
	}
	sum := int32(shifted(m>>(23-fraction32), uint(int(top)-e)))
	for l := range steps32 {
		product := xs[l] * ys[l][j]
		sign := product >> 31
		magnitude := uint32((product^sign)-sign) >> (14 - fraction32) >> uint32(min(top-exponents[l], 31)&31)
		sum += (int32(magnitude) ^ sign) - sign
	}
	kept := math.Float32bits(float32(sum)) &^ dropped32
	return math.Float32frombits(kept) * math.Float32frombits(uint32(top-fraction32+127)<<23)
}
