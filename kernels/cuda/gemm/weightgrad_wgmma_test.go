//go:build cuda

package gemm

import (
	"fmt"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// Weight gradients of several tiles a block: segments and groups without rows, sums that go on, columns and rows that
// end inside a tile, rows of dw that begin anywhere.
func TestGradientsEqualReference(t *testing.T) {
	for _, s := range [][5]int{{1, 1, 1, 64, 64}, {1, 2, 700, 200, 260}, {3, 2, 600, 300, 520}, {9, 3, 500, 129, 196},
		{20, 1, 30, 264, 388}, {2, 2, 100, 70, 197}} {
		groups, segments, rows, n, k := s[0], s[1], s[2], s[3], s[4]
		x := []cudatest.Operand{cudatest.Grouped(kernels.F32, groups, n, k, k, 1), padded(1, rows, n),
			padded(1, rows, k),
			randomOffsets(groups*segments, rows), padded(1, rows, n)}
		forcing(func(path string) {
			cudatest.Both(t, fmt.Sprint("weight gradient ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
				g := &kernels.Groups{Offsets: x[3], Count: groups, Segments: segments}
				d.WeightGrad(x[0], x[1], x[2], g)
				d.WeightGrad(x[0], x[4], x[2], g)
			})
		})
	}
}

// Rows that lie in several places, more than a launch takes, each with segments of its own, are added one place after
// the other.
func TestGradientsOfSeveralPlaces(t *testing.T) {
	for _, s := range [][4]int{{9, 300, 129, 196}, {3, 90, 300, 520}, {2, 100, 70, 197}} {
		groups, rows, n, k := s[0], s[1], s[2], s[3]
		x := []cudatest.Operand{cudatest.Grouped(kernels.F32, groups, n, k, k, 1)}
		for segments := range weightgradWgmmaMostPlaces + 1 {
			x = append(x, padded(1, rows, n), padded(1, rows, k), randomOffsets(groups*(segments+1), rows))
		}
		forcing(func(path string) {
			what := fmt.Sprint("gradient of several places ", path, s)
			cudatest.Both(t, what, x, func(d kernels.Device, x []kernels.Tensor) {
				var all []kernels.GradRows
				for i := 1; i < len(x); i += 3 {
					all = append(all, kernels.GradRows{DY: x[i], X: x[i+1], Groups: &kernels.Groups{Offsets: x[i+2],
						Count: groups, Segments: (i + 2) / 3}})
				}
				d.WeightGrad(x[0], all[0].DY, all[0].X, all[0].Groups, all[1:]...)
				d.WeightGrad(x[0], all[1].DY, all[1].X, all[1].Groups, all[0])
			})
		})
	}
}

// A segment that goes on through several calls is one chain, by tiles that are several to a block and by few.
func TestGradientChainsEqualReference(t *testing.T) {
	for _, s := range [][4]int{{1, 700, 200, 260}, {1, 130, 1000, 1100}, {1, 100, 70, 197}, {3, 96, 130, 264}} {
		heads, rows, n, k := s[0], s[1], s[2], s[3]
		x := []cudatest.Operand{cudatest.Grouped(kernels.F32, 1, n, k, k, 1), padded(1, heads*rows, n),
			padded(1, heads*rows, k), cudatest.Ints(1, 2, []int32{0, int32(rows)})}
		forcing(func(path string) {
			what := fmt.Sprint("gradient of a chain ", path, s)
			cudatest.Both(t, what, x, func(d kernels.Device, x []kernels.Tensor) {
				g := &kernels.Groups{Offsets: x[3], Count: heads, Segments: 1, Interleaved: heads > 1, Chain: true}
				d.WeightGrad(x[0], x[1], x[2], g)
				d.WeightGrad(x[0], x[1], x[2], g)
			})
		})
	}
}

// A fresh gradient is that of zeros, whatever lies there, and groups without rows are zeros: of segments, of more
// places than a launch takes, of a chain that goes on, of heads.
func TestFreshGradientsEqualReference(t *testing.T) {
	for _, s := range [][5]int{{3, 2, 300, 300, 520}, {20, 1, 30, 264, 388}, {2, 2, 100, 70, 197},
		{1, 1, 130, 1000, 1100}} {
		groups, segments, rows, n, k := s[0], s[1], s[2], s[3], s[4]
		x := []cudatest.Operand{cudatest.Grouped(kernels.F32, groups, n, k, k, 1), padded(1, rows, n),
			padded(1, rows, k), randomOffsets(groups*segments, rows), cudatest.Grouped(kernels.F32, 1, n, k, k, 1),
			cudatest.Ints(1, 2, []int32{0, int32(rows / groups)})}
		for _, at := range []int{0, 4} {
			for i := range x[at].Raw {
				x[at].Raw[i] = 0xff // NaN
			}
		}
		forcing(func(path string) {
			cudatest.Both(t, fmt.Sprint("fresh gradient ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
				g := kernels.Groups{Offsets: x[3], Count: groups, Segments: segments, Fresh: true}
				then := kernels.Groups{Offsets: x[3], Count: groups, Segments: segments}
				more := slices.Repeat([]kernels.GradRows{{DY: x[1], X: x[2], Groups: &then}},
					weightgradWgmmaMostPlaces)
				d.WeightGrad(x[0], x[1], x[2], &g, more...)
				heads := kernels.Groups{Offsets: x[5], Count: groups, Segments: 1, Interleaved: groups > 1, Chain: true,
					Fresh: true}
				of := rows / groups * groups
				d.WeightGrad(x[4], x[1].RowRange(0, of), x[2].RowRange(0, of), &heads)
			})
		})
	}
}

// A number that is none reaches the sums of its own group alone, whatever follows a group's rows in a stage.
func TestGradientsKeepApart(t *testing.T) {
	const n, k, rows, from, to = 136, 200, 150, 37, 90 // rows of the group in the middle
	x := []cudatest.Operand{cudatest.Grouped(kernels.F32, 3, n, k, k, 1), padded(1, rows, n), padded(1, rows, k),
		cudatest.Ints(1, 4, []int32{0, from, to, rows})}
	for _, o := range x[1:3] {
		width := 2 * o.Stride
		for i := from * width; i < to*width; i++ {
			o.Raw[i] = 0xff // NaN
		}
	}
	forcing(func(path string) {
		var views []kernels.Tensor
		for _, o := range x {
			v, _ := o.On(cudatest.Card)
			views = append(views, v)
		}
		g := &kernels.Groups{Offsets: views[3], Count: 3, Segments: 1}
		cudatest.Card.WeightGrad(views[0], views[1], views[2], g)
		raw := make([]byte, views[0].Bytes())
		cudatest.Card.Read(raw, views[0])
		for i := 0; i < len(raw); i += 4 {
			if nan, middle := raw[i+3]&0x7f == 0x7f && raw[i+2]&0x80 != 0, i/(4*n*k) == 1; nan != middle {
				t.Fatalf("%s: group %d has % x", path, i/(4*n*k), raw[i:i+4])
			}
		}
	})
}

// The variant is the fastest that was measured for a shape of the table, and one that can take the shape even where a
// test asks for another.
func TestGradientTilings(t *testing.T) {
	for _, c := range []struct {
		groups, n, k, rows int
		force              string
		want               gradTiling
	}{
		{1, 8192, 8192, 8192, "", gradWide},
		{32, 7168, 4096, 32864, "", gradSquare},
		{32, 2048, 7168, 32864, "", gradSquare},
		{128, 2048, 1536, 33216, "", gradWide},
		{128, 768, 2048, 33216, "", gradWide},
		{128, 1536, 16, 33216, "", gradFew},
		{128, 16, 2048, 33216, "", gradFew},
		{1, 2048, 2048, 300, "", gradSquare}, // 128 wide tiles
		{1, 1024, 1024, 8192, "", gradFew},
		{1, 1024, 1024, 8192, "_wide", gradWide},
		{1, 8192, 8190, 8192, "", gradFew},
		{1, 8192, 8190, 8192, "_wide", gradFew},
	} {
		d := &Ops{Context: &driver.Context{Processors: 132, Path: c.force}}
		if got := d.weightGradTiling(kernels.Tensor{Groups: c.groups, Rows: c.n, Cols: c.k}, c.rows); got != c.want {
			t.Errorf("%+v: %s", c, got.name)
		}
	}
}
