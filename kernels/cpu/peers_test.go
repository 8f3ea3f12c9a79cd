package cpu

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"lockstep/kernels"
)

// Rows of several devices come below one another, of every type, also where a part has none.
func TestGatherPeers(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16, kernels.I32} {
		const n = 37
		var parts []kernels.Tensor
		var want []byte
		for i, rows := range []int{3, 0, 5} {
			p := rowTensor(dtype, rows+1, n).RowRange(0, rows)
			raw := make([]byte, p.Bytes())
			for at := range raw {
				raw[at] = byte(at*7 + i)
			}
			d.Write(p, raw)
			parts, want = append(parts, p), append(want, raw...)
		}
		out := rowTensor(dtype, 8, n)
		d.GatherPeers(out, parts)
		got := make([]byte, out.Bytes())
		if d.Read(got, out); !slices.Equal(got, want) {
			t.Errorf("%s: rows differ", dtype)
		}
	}
}

// Rows that lie in parts are combined as those of one tensor, whatever the parts have in place of others' rows; a part
// may have none.
func TestCombinePeers(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	for seed, starts := range [][]int32{{0}, {0, 33}, {0, 0, 51}, {0, 20, 20, 79}, {0, 80}} {
		c := rowCase{seed: 60 + uint64(seed), dtype: kernels.F32}
		c.start()
		const tokens, k, n = 20, 4, 130
		y, w, rowOf := c.strided(tokens*k, n), c.f32(tokens, k), c.rowsOf(tokens, k)
		want, got := c.strided(tokens, n), c.strided(tokens, n)
		var parts []kernels.Tensor
		offsets, first := []int32{-7}, []int(nil) // what no part begins with is not looked at
		for i, from := range starts {
			p, to := c.strided(tokens*k, n), tokens*k
			if i+1 < len(starts) {
				to = int(starts[i+1])
			}
			for r := range p.Rows {
				row := p.RowRange(r, r+1).F32s()[:n]
				if copy(row, y.RowRange(r, r+1).F32s()[:n]); r < int(from) || r >= to {
					row[r%n] = float32(math.NaN())
				}
			}
			parts, first = append(parts, p), append(first, len(offsets))
			offsets = append(offsets, from, math.MaxInt32)
		}
		whole := kernels.PeerRows{Parts: parts, Base: make([]int, len(parts)), Offsets: kernels.WrapI32(offsets),
			First: first}
		own := whole // parts with no room for more than their own rows
		own.Parts, own.Base = nil, nil
		for i, p := range parts {
			from, to := int(starts[i]), tokens*k
			if i+1 < len(starts) {
				to = int(starts[i+1])
			}
			rows := p.RowRange(0, 0)
			if to > from {
				rows = p.RowRange(from, to)
			}
			own.Parts, own.Base = append(own.Parts, rows), append(own.Base, from)
		}
		for _, peers := range []kernels.PeerRows{whole, own} {
			for _, weights := range []kernels.Tensor{w, {}} {
				for _, residual := range []kernels.Tensor{{}, c.strided(tokens, n)} {
					d.Combine(want, residual, y, weights, rowOf)
					d.CombinePeers(got, residual, peers, weights, rowOf)
					for r := range tokens {
						wantBits(t, fmt.Sprint(starts), got.RowRange(r, r+1), rowValues(want.RowRange(r, r+1)))
					}
				}
			}
			taken := c.strided(tokens*k, n)
			d.TakePeers(taken, peers, rowOf.Reshape(1, tokens*k))
			for i, row := range rowOf.I32s() {
				wantBits(t, fmt.Sprint("taken", starts), taken.RowRange(i, i+1),
					rowValues(y.RowRange(int(row), int(row)+1)))
			}
		}
	}
}

// A product of some groups, whose offsets are a part of those of all, has the rows that the product of all has there,
// and leaves the others.
func TestProductOfSomeGroups(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 61, dtype: kernels.F32}
	c.start()
	const groups, segments, rows, in, out = 5, 2, 40, 24, 16
	offsets := []int32{0, 3, 9, 9, 9, 17, 20, 26, 31, 31, 40}
	x, w := c.strided(rows, in), c.f32(groups*out, in)
	w.Groups, w.Rows = groups, out
	own := w.Group(1)
	own.Groups = 3
	all, some := c.strided(rows, out), c.strided(rows, out)
	before := rowValues(some)
	d.MatMul(all, &kernels.Groups{Offsets: kernels.WrapI32(offsets), Count: groups, Segments: segments},
		kernels.Term{X: x, W: w})
	from, to := 1, 4
	d.MatMul(some, &kernels.Groups{Offsets: kernels.WrapI32(offsets).ColRange(from*segments, to*segments+1),
		Count: to - from, Segments: segments}, kernels.Term{X: x, W: own})
	for r := range rows {
		want := before[r*out : (r+1)*out]
		if r >= int(offsets[from*segments]) && r < int(offsets[to*segments]) {
			want = rowValues(all.RowRange(r, r+1))
		}
		wantBits(t, fmt.Sprintf("row %d", r), some.RowRange(r, r+1), want)
	}
}
