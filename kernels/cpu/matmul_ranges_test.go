package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"lockstep/kernels"
)

// ranged is a product whose terms but the first count for ranges of out's columns.
type ranged struct {
	groups *kernels.Groups
	terms  []kernels.Term
	out    kernels.Tensor
}

// randomRanges are up to four ranges, odd, empty, over one another or with gaps between them; groups have rows of their
// own, or are interleaved.
func randomRanges(rng *rand.Rand, d kernels.DType) ranged {
	rows, cols, k, count := 1+rng.IntN(300), 1+rng.IntN(150), 1+rng.IntN(50), 1
	var p ranged
	switch rng.IntN(3) {
	case 1:
		count = 1 + rng.IntN(4)
		offsets := make([]int32, count+1)
		for e := range count {
			offsets[e+1] = min(offsets[e]+int32(rng.IntN(rows+1)), int32(rows))
		}
		offsets[count] = int32(rows)
		p.groups = &kernels.Groups{Offsets: kernels.WrapI32(offsets), Count: count, Segments: 1}
	case 2:
		count = 1 + rng.IntN(4)
		rows *= count
		p.groups = &kernels.Groups{Count: count, Interleaved: true}
	}
	p.terms = []kernels.Term{{X: strided(rng, d, 1, rows, k, rng.IntN(5)), W: strided(rng, d, count, cols, k, 0)}}
	for range rng.IntN(5) {
		from := rng.IntN(cols)
		to, rank := from+rng.IntN(cols-from+1), 1+rng.IntN(20)
		if to == 0 {
			continue // it would be for all columns
		}
		p.terms = append(p.terms, kernels.Term{X: strided(rng, d, 1, rows, rank, rng.IntN(5)),
			W: strided(rng, d, count, to-from, rank, 0), From: from, To: to})
	}
	p.out = strided(rng, d, 1, rows, cols, rng.IntN(4))
	return p
}

// apart is the product column by column: the terms that cover it, each with the row of its weights.
func (p ranged) apart(d *Device, out kernels.Tensor) {
	for col := range out.Cols {
		var own []kernels.Term
		for _, t := range p.terms {
			if from, to := t.Columns(out.Cols); from <= col && col < to {
				own = append(own, kernels.Term{X: t.X, W: rowOfEach(t.W, col-from)})
			}
		}
		d.MatMul(out.ColRange(col, col+1), p.groups, own...)
	}
}

// rowOfEach is a row of each matrix, in memory of its own.
func rowOfEach(w kernels.Tensor, row int) kernels.Tensor {
	var x []float32
	for g := range w.Groups {
		for j := range w.Cols {
			x = append(x, element(w, g, row, j))
		}
	}
	t := kernels.Wrap(x, w.Groups, w.Cols)
	if w.DType == kernels.BF16 {
		h := strided(rand.New(rand.NewPCG(0, 0)), kernels.BF16, 1, w.Groups, w.Cols, 0)
		for i, v := range x {
			h.BF16s()[i] = kernels.RoundBF16(v)
		}
		t = h
	}
	t.Groups, t.Rows = w.Groups, 1
	return t
}

func eachDot(t *testing.T, body func(d *Device, dtype kernels.DType)) {
	for _, c := range []struct {
		dot   kernels.DotMode
		dtype kernels.DType
	}{{kernels.DotFMA, kernels.F32}, {kernels.DotTC16, kernels.BF16}} {
		def := kernels.Default()
		def.Dot = c.dot
		for _, d := range devices(t, def) {
			body(d, c.dtype)
		}
	}
}

// A term for a range of columns is in their chains, in its place, and in no other chain.
func TestRangesEqualProductsApart(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	eachDot(t, func(d *Device, dtype kernels.DType) {
		for range 6 {
			p := randomRanges(rng, dtype)
			want := strided(rng, dtype, 1, p.out.Rows, p.out.Cols, 0)
			d.MatMul(p.out, p.groups, p.terms...)
			p.apart(d, want)
			sameRows(t, fmt.Sprintf("%s, %s: %s", d.Name(), dtype, p), p.out, want)
		}
	})
}

func (p ranged) String() string {
	s := fmt.Sprintf("%s, groups %+v", p.out, p.groups)
	for _, t := range p.terms[1:] {
		s += fmt.Sprintf(", %d:%d by %d", t.From, t.To, t.X.Cols)
	}
	return s
}

// The comparison sees a term that counts for a column too many, and one out of order.
func TestRangesOtherwiseAreNoticed(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	eachDot(t, func(d *Device, dtype kernels.DType) {
		const rows, cols = 9, 40
		term := func(k, from, to int) kernels.Term {
			return kernels.Term{X: strided(rng, dtype, 1, rows, k, 0), W: strided(rng, dtype, 1, to-from, k, 0),
				From: from, To: to}
		}
		base, a, b := term(33, 0, cols), term(5, 7, 21), term(6, 7, 21)
		right, moved, swapped := strided(rng, kernels.F32, 1, rows, cols, 0), strided(rng, kernels.F32, 1, rows, cols,
			0), strided(rng, kernels.F32, 1, rows, cols, 0)
		d.MatMul(right, nil, base, a, b)
		d.MatMul(swapped, nil, base, b, a)
		a.From, a.To = a.From+1, a.To+1
		d.MatMul(moved, nil, base, a, b)
		changed := func(other kernels.Tensor) (columns []int) {
			for j := range cols {
				for i := range rows {
					if element(right, 0, i, j) != element(other, 0, i, j) {
						columns = append(columns, j)
						break
					}
				}
			}
			return columns
		}
		if at := changed(moved); len(at) != 15 || at[0] != 7 || at[14] != 21 {
			t.Errorf("%s, %s: a range one column further changes columns %v", d.Name(), dtype, at)
		}
		if at := changed(swapped); len(at) == 0 || at[0] < 7 || at[len(at)-1] > 20 {
			t.Errorf("%s, %s: terms in another order change columns %v", d.Name(), dtype, at)
		}
	})
}

// Ranges that do not fit are bugs.
func TestRangesThatDoNotFit(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	d := devices(t, kernels.Default())[0]
	x, w, out := strided(rng, kernels.F32, 1, 3, 5, 0), strided(rng, kernels.F32, 1, 10, 5, 0),
		strided(rng, kernels.F32, 1, 3, 10, 0)
	base := kernels.Term{X: x, W: w}
	for name, op := range map[string]func(){
		"beyond out":         func() { d.MatMul(out, nil, base, kernels.Term{X: x, W: w, From: 1, To: 11}) },
		"other rows of W":    func() { d.MatMul(out, nil, base, kernels.Term{X: x, W: w, From: 1, To: 10}) },
		"no end":             func() { d.MatMul(out, nil, base, kernels.Term{X: x, W: w, From: 1}) },
		"of the first term":  func() { d.MatMul(out, nil, kernels.Term{X: x, W: w.RowRange(0, 9), From: 1, To: 10}) },
		"of MatMulT's terms": func() { d.MatMulT(x, nil, kernels.Term{X: out, W: w, To: 5}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a range %s passes", name)
				}
			}()
			op()
		}()
	}
}
