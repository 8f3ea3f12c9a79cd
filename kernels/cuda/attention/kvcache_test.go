//go:build cuda

package attention

import (
	"fmt"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// singles is so many spans of one row.
func singles(n int) []int {
	rows := make([]int, n)
	for i := range rows {
		rows[i] = 1
	}
	return rows
}

// Keys and values of any width, strides and addresses that vectors fit and that they do not, single rows, few and many.
func TestStoreKV(t *testing.T) {
	const pageRows = 7
	for _, cols := range [][2]int{{1, 1}, {7, 13}, {40, 16}, {512, 512}, {576, 8}, {1024, 1030}, {2049, 1016},
		{16384, 12288}, {20480, 20480}} {
		for _, spans := range [][]int{{1}, {1, 40, 3}, singles(33)} {
			for _, gap := range []int{0, 8, 3} {
				l, rows, pages := attend(spans, pageRows)
				k, v := cols[0], cols[1]
				x := []cudatest.Operand{cudatest.Grouped(kernels.BF16, 1, rows, k, k+gap, 1),
					cudatest.Grouped(kernels.BF16, 1, rows, v, v+gap, 1),
					cudatest.Strided(kernels.BF16, pages*pageRows, k, 1), cudatest.Normal(kernels.BF16, pages*pageRows,
						v, 1)}
				cudatest.Both(t, fmt.Sprint("store ", cols, len(spans), gap), x,
					func(d kernels.Device, x []kernels.Tensor) {
						d.StoreKV(kernels.KV{K: x[2], V: x[3], PageRows: pageRows}, x[0], x[1], l)
					})
			}
		}
	}
	x := []cudatest.Operand{cudatest.Normal(kernels.BF16, 5, 16, 1), cudatest.Normal(kernels.BF16, 5, 16, 1),
		cudatest.Normal(kernels.BF16, 2*pageRows, 16,
			1), cudatest.Normal(kernels.BF16, 2*pageRows, 16, 1)}
	in := func(pages ...int32) func(d kernels.Device, x []kernels.Tensor) {
		l := &kernels.Layout{Spans: []kernels.Span{{Rows: 5, Pos: 3, Pages: pages}}, Segments: []int32{0, 5}}
		return func(d kernels.Device, x []kernels.Tensor) {
			d.StoreKV(kernels.KV{K: x[2], V: x[3], PageRows: pageRows}, x[0], x[1], l)
		}
	}
	if n, _ := cudatest.Differences(t, x, in(0, 1), in(1, 0)); n == 0 {
		t.Error("other pages are not noticed")
	}
}
