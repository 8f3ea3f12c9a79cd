//go:build cuda

package cudatest

import (
	"slices"

	"lockstep/kernels"
)

// Decoding is one row each of sequences whose keys end before positions up to pos.
func Decoding(rows, pos, pageRows int) *kernels.Layout {
	l := &kernels.Layout{Packs: []int32{0, int32(rows)}}
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
