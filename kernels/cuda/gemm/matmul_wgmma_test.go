//go:build cuda

package gemm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
	"lockstep/kernels/cuda/driver"
)

// paths are the ways of matrix products.
func paths() []string {
	all := []string{"portable"}
	for _, s := range productTilings {
		all = append(all, s.String())
	}
	return all
}

// forcing runs body with each path of matrix products.
func forcing(body func(path string)) {
	d := cudatest.GPU
	defer func() { d.Path = "" }()
	for _, p := range paths() {
		d.Path = p
		body(p)
	}
}

// padded is random bf16 whose rows start at multiples of 16 bytes.
func padded(groups, rows, cols int) cudatest.Operand {
	return cudatest.Grouped(kernels.BF16, groups, rows, cols, (cols+7)/8*8+8, 1)
}

// randomOffsets cuts rows into n pieces, some of them empty.
func randomOffsets(n, rows int) cudatest.Operand {
	offsets := make([]int32, n+1)
	for i := 1; i < n; i++ {
		offsets[i] = min(offsets[i-1]+int32(cudatest.Rand.IntN(3*rows/n+2)*cudatest.Rand.IntN(2)), int32(rows))
	}
	offsets[n] = int32(rows)
	return cudatest.Ints(1, len(offsets), offsets)
}

func TestGroupedPathsEqualReference(t *testing.T) {
	for _, s := range [][4]int{{1, 100, 33, 70}, {3, 400, 72, 100}, {8, 300, 264, 96}, {40, 900, 130, 136}} {
		groups, rows, n, k := s[0], s[1], s[2], s[3]
		const segments = 3
		g := func(t kernels.Tensor) *kernels.Groups {
			return &kernels.Groups{Offsets: t, Count: groups, Segments: segments}
		}
		at := randomOffsets(groups*segments, rows)
		x := []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, n, 1), padded(1, rows, k), padded(groups, n, k), at,
			padded(groups, k, n), cudatest.Grouped(kernels.F32, groups, n, k, k, 1), padded(1, rows, n)}
		forcing(func(path string) {
			cudatest.Both(t, fmt.Sprint("nt ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
				d.MatMul(x[0], g(x[3]), kernels.Term{X: x[1], W: x[2]})
			})
			cudatest.Both(t, fmt.Sprint("nn ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
				d.MatMulT(x[0], g(x[3]), kernels.Term{X: x[1], W: x[4]})
			})
			cudatest.Both(t, fmt.Sprint("weight gradient ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
				d.WeightGrad(x[5], x[6], x[1], g(x[3]))
			})
		})
	}
}

// rangedCase is a product of m rows with terms for ranges of out's n columns, the first for all of them.
type rangedCase struct {
	m, n, k, groups int
	ranges          [][3]int // from, to and depth of each term
}

func (c rangedCase) operands(out kernels.DType) []cudatest.Operand {
	x := []cudatest.Operand{cudatest.Strided(out, c.m, c.n, 1), randomOffsets(c.groups, c.m), padded(1, c.m, c.k),
		padded(c.groups, c.n, c.k)}
	for _, r := range c.ranges {
		x = append(x, padded(1, c.m, r[2]), padded(c.groups, r[1]-r[0], r[2]))
	}
	return x
}

func (c rangedCase) run(d kernels.Device, x []kernels.Tensor) {
	var g *kernels.Groups
	if c.groups > 1 {
		g = &kernels.Groups{Offsets: x[1], Count: c.groups, Segments: 1}
	}
	terms := []kernels.Term{{X: x[2], W: x[3]}}
	for i, r := range c.ranges {
		terms = append(terms, kernels.Term{X: x[4+2*i], W: x[5+2*i], From: r[0], To: r[1]})
	}
	d.MatMul(x[0], g, terms...)
}

// Ranges that end with tiles and ranges that do not, over one another, with gaps, more of them than a launch takes, and
// adapters of q, k and v.
func TestRangesEqualReference(t *testing.T) {
	for _, c := range []rangedCase{
		{1, 1, 1, 1, [][3]int{{0, 1, 1}}},
		{33, 320, 72, 1, [][3]int{{0, 128, 16}, {128, 256, 16}, {256, 320, 16}}},
		{300, 300, 40, 1, [][3]int{{64, 128, 24}, {256, 300, 8}}},
		{70, 257, 100, 1, [][3]int{{3, 130, 16}, {100, 201, 5}, {130, 131, 70}}},
		{20, 192, 64, 1, [][3]int{{3, 70, 16}}},
		{9, 200, 48, 1, [][3]int{{0, 40, 8}, {40, 80, 8}, {80, 120, 8}, {120, 160, 8}, {160, 200, 8}}},
		{150, 192, 56, 3, [][3]int{{0, 64, 16}, {128, 192, 16}}},
		{130, 150, 33, 4, [][3]int{{7, 90, 16}, {90, 150, 16}}},
	} {
		for _, out := range cudatest.DTypes {
			x := c.operands(out)
			forcing(func(path string) { cudatest.Both(t, fmt.Sprint("ranges ", path, c), x, c.run) })
		}
	}
}

// A range that begins a tile further is noticed.
func TestRangesOtherwiseDiffer(t *testing.T) {
	c := rangedCase{33, 384, 72, 1, [][3]int{{0, 128, 16}}}
	moved := rangedCase{33, 384, 72, 1, [][3]int{{128, 256, 16}}}
	forcing(func(path string) {
		if n, _ := cudatest.Differences(t, c.operands(kernels.F32), c.run, moved.run); n == 0 {
			t.Errorf("%s: a term for other columns has the same bits", path)
		}
	})
}

// What a term multiplies does not reach columns that it does not count for, be it no number.
func TestRangesKeepApart(t *testing.T) {
	for _, r := range [][2]int{{128, 256}, {3, 70}} {
		c := rangedCase{20, 384, 72, 1, [][3]int{{r[0], r[1], 16}}}
		x := c.operands(kernels.BF16)
		for i := range x[4].Raw {
			x[4].Raw[i] = 0xff // NaN
		}
		forcing(func(path string) {
			var views []kernels.Tensor
			for _, o := range x {
				v, _ := o.On(cudatest.Card)
				views = append(views, v)
			}
			c.run(cudatest.Card, views)
			row := make([]byte, views[0].RowRange(0, 1).Bytes())
			for i := range c.m {
				cudatest.Card.Read(row, views[0].RowRange(i, i+1))
				for j := range c.n {
					if nan, covered := row[2*j+1]&0x7f == 0x7f && row[2*j]&0x80 != 0, r[0] <= j &&
						j < r[1]; nan != covered {
						t.Fatalf("%s: columns %d:%d are multiplied with NaN: [%d, %d] is % x", path, r[0], r[1], i, j,
							row[2*j:2*j+2])
					}
				}
			}
		})
	}
}

// One launch has all columns where tiles end with the ranges.
func TestWindows(t *testing.T) {
	term := func(from, to int) kernels.Term { return kernels.Term{From: from, To: to} }
	for _, c := range []struct {
		tile  int
		terms []kernels.Term
		want  []int // where windows begin, and how many terms they have
	}{
		{64, []kernels.Term{{}}, []int{0, 1}},
		{64, []kernels.Term{{}, term(0, 128), term(128, 192), term(192, 250)}, []int{0, 4}},
		{128, []kernels.Term{{}, term(0, 128), term(128, 192), term(192, 250)}, []int{0, 2, 128, 2, 192, 2}},
		{64, []kernels.Term{{}, term(64, 65)}, []int{0, 1, 64, 2, 65, 1}},
		{64, []kernels.Term{{}, term(0, 64), term(64, 250), term(0, 64), term(64, 250), term(64, 128)},
			[]int{0, 3, 64, 4, 128, 3}},
	} {
		var got []int
		for _, w := range windows(250, c.tile, c.terms) {
			got = append(got, w.from, len(w.terms))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("tiles of %d, %v: %v, want %v", c.tile, c.terms, got, c.want)
		}
	}
}

// The variant is within a hundredth of the fastest that was measured for the shapes of BenchmarkFew, and the fastest of
// BenchmarkGroups; what computes some of a product's columns has tiles that end where those of all columns do.
func TestTilings(t *testing.T) {
	d := &Ops{Context: &driver.Context{Processors: 132}}
	for _, c := range []struct {
		groups, rows, columns int
		want                  tiling
	}{
		{1, 1, 5120, tilingDeep.of(8)},
		{1, 32, 16, tilingDeep.of(8)},
		{1, 32, 5120, tilingDeep.of(32)},
		{1, 118, 128, tilingDeep.of(8)},
		{1, 118, 2048, tilingDeep.of(32)},
		{1, 118, 5120, tilingTall},
		{1, 250, 2048, tilingDeep},
		{1, 160, 5120, tilingSquare.of(64)},
		{1, 250, 5120, tilingSquare.of(96)},
		{1, 512, 5120, tilingSquare},
		{128, 944, 1536, tilingFew},
		{128, 12288, 1536, tilingSquare},
		{128, 16384, 1536, tilingWide},
		{96, 15360, 4096, tilingWide},
		{128, 33216, 2048, tilingWide},
		{1, 8192, 8192, tilingWide},
	} {
		if got := d.tilingFor(c.groups, c.rows, c.columns); got != c.want {
			t.Errorf("%d groups, %d rows, %d columns: %s, want %s", c.groups, c.rows, c.columns, got, c.want)
		}
	}
	for range 10000 {
		groups, rows, columns := 1+cudatest.Rand.IntN(9), 1+cudatest.Rand.IntN(2000), 1+cudatest.Rand.IntN(30000)
		whole, part := d.tilingFor(groups, rows, columns), d.tilingFor(groups, rows, 1+cudatest.Rand.IntN(columns))
		if whole.columns%part.columns != 0 {
			t.Fatalf("%d groups, %d rows, %d columns: %s, and %s for some of them", groups, rows, columns, whole, part)
		}
	}
}

// Interleaved groups with weights of their own, or one for all: heads whose tiles end in many places, segments without
// rows, a shared sum that takes the segments in order and of each pack the rows of every head.
func TestInterleavedGroups(t *testing.T) {
	for _, s := range [][5]int{{1, 1, 5, 7, 3}, {9, 4, 16, 40, 8}, {130, 3, 100, 33, 16}, {33, 16, 192, 136, 8},
		{300, 2, 72, 264, 16}} {
		tokens, heads, n, k, rank := s[0], s[1], s[2], s[3], s[4]
		rows := tokens * heads
		offsets := randomOffsets(3, tokens)
		x := []cudatest.Operand{
			padded(1, rows, n), padded(1, rows, k), padded(1, rows, k), padded(1, rows, n),
			cudatest.Strided(kernels.BF16, rows,
				rank, 1),
			padded(heads, n, k), padded(1, rank, k), cudatest.Grouped(kernels.BF16, heads, n, rank, rank, 1),
			cudatest.Grouped(kernels.F32, heads, n, k, k, 1), cudatest.Normal(kernels.F32, n, k, 1), offsets,
			cudatest.Normal(kernels.F32, rows, n,
				1),
		}
		forcing(func(path string) {
			cudatest.Both(t, fmt.Sprint("interleaved ", path, s), x, func(d kernels.Device, x []kernels.Tensor) {
				g := &kernels.Groups{Offsets: x[10], Count: heads, Segments: 3, Interleaved: true}
				d.MatMul(x[0], g, kernels.Term{X: x[1], W: x[5]}, kernels.Term{X: x[4], W: x[7]})
				d.MatMul(x[11], g, kernels.Term{X: x[1], W: x[5]})
				d.MatMulT(x[2], g, kernels.Term{X: x[3], W: x[5]}, kernels.Term{X: x[4], W: x[6]})
				d.WeightGrad(x[8], x[3], x[1], g)
				d.WeightGrad(x[9], x[3], x[1], g)
			})
		})
	}
}

// Large products: too slow for the reference, so the paths are compared with each other.
func TestPathsAgree(t *testing.T) {
	for _, s := range [][4]int{{1, 4000, 3000, 2000}, {1, 50, 8000, 2056}, {16, 5000, 1000, 520},
		{128, 3000, 256, 776}} {
		groups, rows, n, k := s[0], s[1], s[2], s[3]
		g := func(t kernels.Tensor) *kernels.Groups { return &kernels.Groups{Offsets: t, Count: groups, Segments: 2} }
		operands := []cudatest.Operand{cudatest.Normal(kernels.BF16, rows, n, 1), cudatest.Normal(kernels.BF16, rows, n,
			1),
			cudatest.Grouped(kernels.F32, groups, n, k, k, 1),
			padded(1, rows, k), padded(groups, n, k), padded(groups, k, n), padded(1, rows, n),
			randomOffsets(groups*2, rows)}
		var want [][]byte
		forcing(func(path string) {
			var x, whole []kernels.Tensor
			for _, o := range operands {
				v, w := o.On(cudatest.Card)
				x, whole = append(x, v), append(whole, w)
			}
			cudatest.Card.MatMul(x[0], g(x[7]), kernels.Term{X: x[3], W: x[4]})
			cudatest.Card.MatMulT(x[1], g(x[7]), kernels.Term{X: x[3], W: x[5]})
			cudatest.Card.WeightGrad(x[2], x[6], x[3], g(x[7]))
			for i, name := range []string{"nt", "nn", "weight gradient"} {
				raw := make([]byte, whole[i].Bytes())
				cudatest.Card.Read(raw, whole[i])
				if path == "portable" {
					want = append(want, raw)
				} else if !bytes.Equal(raw, want[i]) {
					t.Errorf("%s %v: %s is not %s", name, s, path, "portable")
				}
			}
		})
	}
}
