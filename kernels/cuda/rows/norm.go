//go:build cuda

package rows

import (
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

// normShape is a kernel of norm.cu: teams that hold rows of up to 256*parts columns in registers, `columns` of every
// 256 to a thread.
type normShape struct{ columns, parts, teams int }

// Shapes of the norm and of its gradient, as norm.cu has them; the first that takes a row is taken. Those of one column
// take any address and length.
var (
	normShapes = []normShape{{8, 2, 8}, {8, 4, 8}, {8, 8, 8}, {4, 16, 4}, {2, 32, 2}, {1, 16, 1}, {1, 64, 1}}
	// of few rows, if they take them: a row goes through more threads
	normFewShapes  = []normShape{{2, 8, 1}, {2, 16, 1}}
	normGradShapes = []normShape{{8, 2, 8}, {8, 4, 8}, {4, 8, 8}, {2, 16, 4}, {2, 32, 2}, {1, 16, 2}, {1, 64, 1}}
)

// threads of a block.
func (s normShape) threads() int { return s.teams * 256 / s.columns }

func (s normShape) String() string { return fmt.Sprintf("%dx%d", s.columns, s.parts) }

// takes reports that every row of the tensors starts where a thread's columns are one access, and fits.
func (s normShape) takes(rows ...kernels.Tensor) bool {
	for _, t := range rows {
		size := s.columns * t.DType.Size()
		if t.Cols > 256*s.parts || t.Cols%s.columns != 0 || t.Stride%s.columns != 0 ||
			driver.Address(t)%cu.DevicePtr(min(size, 16)) != 0 {
			return false
		}
	}
	return true
}

func normShapeOf(shapes []normShape, rows ...kernels.Tensor) normShape {
	for _, s := range shapes {
		if s.takes(rows...) {
			return s
		}
	}
	panic(kernels.Fault{Err: fmt.Errorf("norms on the GPU support rows of up to %d columns, not %d",
		256*shapes[len(shapes)-1].parts, rows[0].Cols)})
}

// RMSNorm: rstd[t] = 1/sqrt(tree(x*x)/n + eps), out = round((x*rstd)*w), over each row of x [T, n].
func (d *Ops) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	s := normShapeOf(d.normShapes(x.Rows), x, out, w)
	launchRmsNorm(d.Context, fmt.Sprintf("_%s%s", s, driver.Suffix(x)), [3]int{driver.Blocks(x.Rows, s.teams), 1, 1},
		s.threads(), 0, out, rstd, x, w, x.Rows, x.Cols, out.Stride, x.Stride, norm.Eps, driver.Flag(norm.PlusOne))
}

// AddRMSNorm: sum = round(a + b), and RMSNorm of sum. sum may be a or b.
func (d *Ops) AddRMSNorm(out, sum, rstd, a, b, w kernels.Tensor, norm kernels.Norm) {
	s := normShapeOf(d.normShapes(a.Rows), a, b, sum, out, w)
	launchAddRmsNorm(d.Context, fmt.Sprintf("_%s%s", s, driver.Suffix(a)),
		[3]int{driver.Blocks(a.Rows, s.teams), 1, 1}, s.threads(), 0, out, sum, rstd, a, b, w, a.Rows, a.Cols,
		out.Stride, sum.Stride, a.Stride, b.Stride, norm.Eps, driver.Flag(norm.PlusOne))
}

// normShapes are those to choose from for so many rows.
func (d *Ops) normShapes(rows int) []normShape {
	if rows < 8*d.Processors { // a warp for each would leave processors idle
		return slices.Concat(normFewShapes, normShapes)
	}
	return normShapes
}

// RMSNormBackward adds to dx [T, n] and to dw F32 [1, n], which may be nil.
func (d *Ops) RMSNormBackward(dx, dw, dy, x, rstd, w kernels.Tensor, norm kernels.Norm, segments []int32) {
	s, blocks, shared := normShapeOf(normGradShapes, x, dy, dx, w), StageBlocks(d.Context, segments), 0
	if !dw.IsNil() {
		shared = 4 * s.teams * x.Cols
	}
	SumRows(d.Context, dw, blocks, func(sums cu.DevicePtr) {
		launchRmsNormBackward(d.Context, fmt.Sprintf("_%s%s", s, driver.Suffix(x)), [3]int{blocks.Count, 1, 1},
			s.threads(), shared, dx, sums, dy, x, rstd, w, blocks.Rows, x.Cols, dx.Stride, dy.Stride, x.Stride,
			driver.Flag(norm.PlusOne))
	})
}

// Blocks are the blocks of a sum over rows, staged for the operation that follows.
type Blocks struct {
	Count    int
	Rows     driver.Array[int32] // the first row of each block, then the number of rows
	segments driver.Array[int32] // the first block of each segment, then Count
}

// StageBlocks cuts the rows of segments into blocks.
func StageBlocks(c *driver.Context, segments []int32) Blocks {
	rows, starts := kernels.RowBlocks(segments)
	staged := driver.Stage(c, append(rows, starts...))
	return Blocks{Count: len(rows) - 1, Rows: staged, segments: staged.From(len(rows))}
}

// SumRows runs a kernel of a block for each block of rows, which writes sums F32 [blocks, columns of dw] unless dw is
// nil, and adds them to dw.
func SumRows(c *driver.Context, dw kernels.Tensor, b Blocks, run func(sums cu.DevicePtr)) {
	if dw.IsNil() {
		run(0)
		return
	}
	sums := c.Scratch(4 * b.Count * dw.Cols)
	run(sums)
	AddBlocks(c, dw, sums, b)
}

// AddBlocks adds sums F32 [blocks, elements] to dw F32 of so many elements: those of a segment from +0, and the
// segment's sum to dw, the first first, or to the segment's own; see [kernels.SegmentStep].
func AddBlocks(c *driver.Context, dw kernels.Tensor, sums cu.DevicePtr, b Blocks) {
	n := dw.Rows * dw.Cols
	launchAddBlocks(c, [3]int{driver.Blocks(n, 32), 1, 1}, normAdders, 0, dw, sums, b.segments, b.Count, n,
		kernels.SegmentStep(dw))
}

// AddRows adds parts F32 [rows, n] to dw F32 [1, n], or to that of each segment, as a sum over rows, by way of sums F32
// [blocks, n].
func AddRows(c *driver.Context, dw kernels.Tensor, parts, sums cu.DevicePtr, b Blocks) {
	launchAddRows(c, [3]int{driver.Blocks(dw.Cols, 32), b.Count, 1}, 32, 0, sums, parts, b.Rows, dw.Cols)
	AddBlocks(c, dw, sums, b)
}
