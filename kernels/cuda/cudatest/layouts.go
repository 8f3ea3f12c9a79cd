//go:build cuda

package cudatest

import (
	"fmt"
	"slices"
	"testing"

	"lockstep/kernels"
)

// Decoding is one row each of sequences whose keys end before positions up to pos.
func Decoding(rows, pos, pageRows int) *kernels.Layout {
	l := &kernels.Layout{Segments: []int32{0, int32(rows)}}
	page := int32(0)
	for i := range rows {
		s := kernels.Span{Row: i, Rows: 1, Pos: pos / (i + 1)}
		for range s.Pos/pageRows + 1 {
			s.Pages = append(s.Pages, page)
			page++
		}
		l.Spans = append(l.Spans, s)
	}
	return l
}

// Segmentations are batches of so many rows, cut into one segment and into several: of a block or of other lengths, of
// one row, and with empty ones among them.
func Segmentations(rows int) [][]int32 {
	n := int32(rows)
	return [][]int32{{0, n}, kernels.CutSegments([]int32{0, n / 3, n}, kernels.RowBlock),
		kernels.CutSegments([]int32{0, 0, n / 5, n / 5, n}, 90), kernels.CutSegments([]int32{0, n}, 1)}
}

// Part is some rows of a batch.
type Part struct{ From, To int }

// Rows is the part's rows of a tensor that has those of the batch.
func (p Part) Rows(t kernels.Tensor) kernels.Tensor { return t.RowRange(p.From, p.To) }

// Columns is the part's columns of a tensor that has one for each row of the batch.
func (p Part) Columns(t kernels.Tensor) kernels.Tensor { return t.ColRange(p.From, p.To) }

// BySegment compares an operation that adds to gradients on both devices, on all segments in one call and, unless they
// are many, on each in a call of its own: all leave the same bytes. op has the rows of a call and their segments.
func BySegment(t *testing.T, name string, operands []Operand, segments []int32, op func(d kernels.Device,
	x []kernels.Tensor, p Part, segments []int32)) {
	t.Helper()
	name = fmt.Sprintf("%s in %d segments", name, len(segments)-1)
	joint := func(d kernels.Device, x []kernels.Tensor) {
		op(d, x, Part{0, int(segments[len(segments)-1])}, segments)
	}
	each := func(d kernels.Device, x []kernels.Tensor) {
		for i, from := range segments[:len(segments)-1] {
			if to := segments[i+1]; from < to {
				op(d, x, Part{int(from), int(to)}, []int32{0, to - from})
			}
		}
	}
	Both(t, name, operands, joint)
	if len(segments) > 20 {
		return
	}
	if n, at := Differences(t, operands, joint, each); n > 0 {
		t.Errorf("%s, one call for each: %d bytes differ, first %s", name, n, at)
	}
}

// Lists is min(topK, i+1) keys for every row: any, or with `near` those around a place that neighbours share.
func Lists(l *kernels.Layout, topK int, near bool) Operand {
	v := make([]int32, l.Rows()*topK)
	for i := range v {
		v[i] = -1
	}
	for _, s := range l.Spans {
		for i := range s.Rows {
			keys := s.Pos + i + 1
			list := Rand.Perm(keys)
			if near {
				slices.SortFunc(list, func(a, b int) int { return min(a%97, (keys-a)/3) - min(b%97, (keys-b)/3) })
			}
			list = list[:min(topK, keys)]
			slices.Sort(list)
			for n, j := range list {
				v[(s.Row+i)*topK+n] = int32(j)
			}
		}
	}
	return Ints(l.Rows(), topK, v)
}
