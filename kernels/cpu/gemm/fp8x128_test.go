package gemm

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
	"lockstep/quant"
)

// step32Integers is a step as the definition states it, in integers: acc is significand * 2^exponent, with a
// significand of at most 14 bits, and so is the result.
func step32Integers(acc *big.Int, accExponent int, x, y *[steps32]byte) (sum *big.Int, exponent int) {
	type term struct {
		units    *big.Int // of 2^(exponent-6): products in [64, 256)
		exponent int
	}
	var terms []term
	if bits := acc.BitLen(); bits > 0 { // to 7 bits before 2^200
		terms = append(terms, term{new(big.Int).Lsh(acc, uint(207-bits)), accExponent + bits - 1})
	}
	split := func(code byte) (significand int64, exponent int) {
		significand, exponent = int64(code&7), int(code>>3&15)-7
		if exponent == -7 {
			for exponent = -6; significand != 0 && significand < 8; exponent-- {
				significand *= 2
			}
		} else {
			significand += 8
		}
		if code > 127 {
			significand = -significand
		}
		return significand, exponent
	}
	for i := range x {
		mx, ex := split(x[i])
		my, ey := split(y[i])
		if mx*my != 0 {
			terms = append(terms, term{new(big.Int).Lsh(big.NewInt(mx*my), 200), ex + ey})
		}
	}
	top := -100
	for _, t := range terms {
		top = max(top, t.exponent)
	}
	sum = new(big.Int)
	for _, t := range terms { // to units of 2^(top-13), toward zero
		sum.Add(sum, t.units.Quo(t.units, new(big.Int).Lsh(big.NewInt(1), uint(200+6-13+top-t.exponent))))
	}
	exponent = top - 13
	if drop := sum.BitLen() - 14; drop > 0 {
		sum, exponent = sum.Quo(sum, new(big.Int).Lsh(big.NewInt(1), uint(drop))), exponent+drop
	}
	return sum, exponent
}

// codePair draws codes whose exponents lie about a centre, subnormal ones, zeros of both signs, or of all sizes.
func codePair(rng *rand.Rand, kind int) (x, y byte) {
	draw := func() byte {
		c := byte(rng.Uint32())
		switch {
		case rng.IntN(8) == 0:
			c &= 0x80
		case kind == 0:
			c = c&0x87 | byte(6+rng.IntN(3))<<3
		case kind == 1 && rng.IntN(2) == 0:
			c &= 0x87 // subnormal
		case kind == 2:
			c = c&0x87 | []byte{0, 1, 14, 15}[rng.IntN(4)]<<3
		}
		if quant.IsNaNE4M3(c) {
			c--
		}
		return c
	}
	return draw(), draw()
}

// A step is what its definition says, in integers: with exponents of all sizes, subnormal codes, zeros, sums that
// cancel, sums that are truncated, and every pair of codes.
func TestStep32AgainstIntegers(t *testing.T) {
	rng, truncated, cancelled := rand.New(rand.NewPCG(8, 32)), 0, 0
	value := func(code byte) float32 { return quant.E4M3(code).Float() }
	check := func(acc *big.Int, exponent int, x, y *[steps32]byte) (*big.Int, int) {
		t.Helper()
		var xs, ys [steps32]float32
		exact := float64(acc.Int64()) * math.Ldexp(1, exponent)
		start := float32(exact)
		for i := range x {
			xs[i], ys[i] = value(x[i]), value(y[i])
			exact += float64(xs[i]) * float64(ys[i])
		}
		got := Step32(start, &xs, &ys)
		sum, at := step32Integers(acc, exponent, x, y)
		want := float32(float64(sum.Int64()) * math.Ldexp(1, at))
		if math.Float32bits(got) != math.Float32bits(want+0) {
			t.Fatalf("Step32(%v, %v, %v) = %b, want %b", start, xs, ys, got, want)
		}
		if float64(got) != exact {
			truncated++
		} else if got == 0 {
			cancelled++
		}
		return sum, at
	}
	for pair := range 1 << 16 { // alone, with a smaller product, and with a larger one
		x, y := byte(pair), byte(pair>>8)
		if !quant.IsNaNE4M3(x) && !quant.IsNaNE4M3(y) {
			var xs, ys [steps32]byte
			xs[pair&31], ys[pair&31], xs[(pair+7)&31], ys[(pair+7)&31] = x, y, 0x31, byte(pair>>5)&^0x40
			check(new(big.Int), 0, &xs, &ys)
		}
	}
	for i := range 20_000 {
		acc, exponent := new(big.Int), 0
		for range 1 + rng.IntN(4) {
			var x, y [steps32]byte
			for l := range x {
				x[l], y[l] = codePair(rng, i%4)
			}
			if i%50 == 0 { // everything cancels
				for l := 16; l < steps32; l++ {
					x[l], y[l] = x[l-16]^0x80, y[l-16]
				}
			}
			acc, exponent = check(acc, exponent, &x, &y)
		}
	}
	if truncated < 10_000 || cancelled < 300 {
		t.Errorf("%d sums are truncated, %d are zero", truncated, cancelled)
	}
}

// fp8Operand is rows of drawn codes with scales of many sizes, some so small that products of two are subnormal.
func fp8Operand(rng *rand.Rand, rows, cols, kind int) kernels.QuantizedWeight {
	f := quant.FP8x128.Format()
	codes, scales := make([]byte, rows*cols), make([]byte, 4*rows*f.Blocks(cols))
	for i := range codes {
		codes[i], _ = codePair(rng, kind)
	}
	w := codesOf(f, kernels.BF16, rows, cols, codes, scales)
	for i := range w.Scales.F32s() {
		w.Scales.F32s()[i] = float32(math.Ldexp(1+rng.Float64(), rng.IntN(9)-4-kind*20))
	}
	return w
}

// fp8Chain is the chain of element (m, n) by steps in integers and one rounding of each product of scales and of each
// sum.
func fp8Chain(x, w kernels.QuantizedWeight, m, n int) float32 {
	acc := float32(0)
	for b := range x.Scales.Rows {
		p, exponent := new(big.Int), 0
		for from := b * 128; from < min(b*128+128, x.Cols); from += steps32 {
			var xs, ws [steps32]byte
			copy(xs[:], x.Codes.Raw()[m*x.Cols+from:min(m*x.Cols+from+steps32, (m+1)*x.Cols)])
			copy(ws[:], w.Codes.Raw()[n*w.Cols+from:min(n*w.Cols+from+steps32, (n+1)*w.Cols)])
			p, exponent = step32Integers(p, exponent, &xs, &ws)
		}
		exact := func(v float32) *big.Float { return new(big.Float).SetPrec(400).SetFloat64(float64(v)) }
		both := float32(x.Scales.F32s()[b*x.Rows+m] * w.Scales.F32s()[b*w.Rows+n])
		sum := new(big.Float).SetPrec(400).SetMantExp(new(big.Float).SetPrec(400).SetInt(p), exponent)
		sum.Mul(sum, exact(both)).Add(sum, exact(acc))
		acc, _ = sum.Float32()
	}
	return acc + 0
}

// Products of codes are chains of the definition, element by element: any tile, instruction set and thread, K from one
// column to several blocks, with another chain's terms behind them.
func TestFP8x128(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 128))
	each := func(n, grain int, body func(worker, from, to int)) {
		for i := 0; i < n; i += grain {
			body(0, i, min(i+grain, n))
		}
	}
	for i, c := range [][3]int{{1, 1, 1}, {3, 17, 31}, {5, 40, 128}, {2, 16, 129}, {9, 33, 300}, {130, 20, 160},
		{4, 270, 96}, {7, 18, 512}} {
		m, n, k := c[0], c[1], c[2]
		x, w := fp8Operand(rng, m, k, i%4), fp8Operand(rng, n, k, i%4)
		u, b := matrix(rng, m, 16, func() float32 { return bf16(float32(rng.NormFloat64())) }),
			matrix(rng, 16, n, func() float32 { return bf16(float32(rng.NormFloat64())) })
		for name, e := range engines(t, kernels.DotTC16) {
			got := make([]float32, m*n)
			pieces := []Piece{{A: OfQuantized(x), B: OfQuantized(w).T(), K: k}}
			if i%2 == 1 {
				pieces = append(pieces, Piece{A: Operand{F: u.X, RS: u.RS, CS: u.CS},
					B: Operand{F: b.X, RS: b.RS, CS: b.CS}, K: 16})
			}
			e.Run(3, each, []Product{{C: Operand{F: got, RS: n, CS: 1}, M: m, N: n, Pieces: pieces}})
			want := make([]float32, m*n)
			for at := range want {
				if want[at] = fp8Chain(x, w, at/n, at%n); i%2 == 1 {
					want[at] = chain16(want[at], at/n, at%n, 16, pieces[1].A, pieces[1].B)
				}
			}
			mustEqual(t, fmt.Sprint(name, c), got, want)
		}
	}
}

// A code that is NaN makes its row NaN, or its column.
func TestFP8x128NotFinite(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	x, w := fp8Operand(rng, 3, 160, 0), fp8Operand(rng, 20, 160, 0)
	x.Codes.Raw()[160+150] = 0xff
	w.Codes.Raw()[7*160] = 0x7f
	for name, e := range engines(t, kernels.DotTC16) {
		got := make([]float32, 60)
		e.block(new(Scratch), got, 20, 3, 20, 160, OfQuantized(x), OfQuantized(w).T(), true)
		for i, v := range got {
			if isNaN := v != v; isNaN != (i/20 == 1 || i%20 == 7) {
				t.Errorf("%s: element %d is %v", name, i, v)
			}
		}
	}
}

// Products of codes, and by tc16 of the numbers that they stand for.
func BenchmarkFP8x128(b *testing.B) {
	rng := rand.New(rand.NewPCG(8, 2))
	const m, n, k = 64, 256, 1024
	x, w := fp8Operand(rng, m, k, 0), fp8Operand(rng, n, k, 0)
	numbers := func(w kernels.QuantizedWeight) Operand {
		values := make([]float32, w.Rows*w.Cols)
		for r := range w.Rows {
			w.DecodeRow(values[r*w.Cols:][:w.Cols], r, 0)
		}
		return Operand{F: values, RS: w.Cols, CS: 1}
	}
	c := make([]float32, m*n)
	for name, e := range engines(b, kernels.DotTC16) {
		for kind, of := range map[string][2]Operand{"codes": {OfQuantized(x), OfQuantized(w).T()},
			"numbers": {numbers(x), numbers(w).T()}} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				s := new(Scratch)
				for b.Loop() {
					e.block(s, c, n, m, n, k, of[0], of[1], true)
				}
				b.ReportMetric(float64(2*m*n*k*b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
