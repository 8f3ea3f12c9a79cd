package cpu

import (
	"fmt"
	"slices"
	"sync"

	"lockstep/kernels"
	"lockstep/kernels/cpu/vec"
)

// matrix reads and writes the rows of an F32 or BF16 tensor as fp32. Rows of all groups are counted through.
type matrix struct {
	f                  []float32
	h                  []uint16
	rows, cols, stride int
	vec                *vec.Ops
}

func (d *Device) matrix(t kernels.Tensor) matrix {
	m := matrix{rows: t.Groups * t.Rows, cols: t.Cols, stride: t.Stride, vec: d.vec}
	if t.DType == kernels.BF16 {
		m.h = t.BF16s()
	} else {
		m.f = t.F32s()
	}
	return m
}

// load is row r: the row itself in an F32 tensor, otherwise widened into buf.
func (m *matrix) load(r int, buf []float32) []float32 {
	return m.loadPart(r, 0, m.cols, buf)
}

// loadPart is columns [from, to) of row r, as load gives them.
func (m *matrix) loadPart(r, from, to int, buf []float32) []float32 {
	at := r * m.stride
	if m.f != nil {
		return m.f[at+from : at+to : at+to]
	}
	buf = buf[:to-from]
	m.vec.Widen(buf, m.h[at+from:at+to])
	return buf
}

// target is where row r is to be computed: the row itself in an F32 tensor, otherwise buf. store finishes it.
func (m *matrix) target(r int, buf []float32) []float32 {
	if m.f != nil {
		at := r * m.stride
		return m.f[at : at+m.cols : at+m.cols]
	}
	return buf[:m.cols]
}

// store rounds a row computed in target to storage. An F32 row is already in its place.
func (m *matrix) store(r int, row []float32) {
	if m.f == nil {
		m.vec.Narrow(m.h[r*m.stride:][:m.cols], row)
	}
}

// storePart rounds to columns from, from+1, ... of row r. Row and destination do not overlap.
func (m *matrix) storePart(r, from int, row []float32) {
	at := r*m.stride + from
	if m.f != nil {
		copy(m.f[at:at+len(row)], row)
		return
	}
	m.vec.Narrow(m.h[at:at+len(row)], row)
}

// rowWork is the number of elements that a thread takes at a time: enough to hide the cost of taking them.
const rowWork = 16 << 10

// eachRow calls body for ranges of rows of some columns, on all threads, with n scratch rows of cols elements, whose
// content is undefined.
func (d *Device) eachRow(rows, cols, n int, body func(from, to int, buf [][]float32)) {
	d.pool.each(rows, rowWork/max(cols, 1), func(_, from, to int) {
		s := rowScratches.Get().(*rowScratch)
		defer rowScratches.Put(s)
		body(from, to, s.take(n, cols))
	})
}

// eachColumn cuts columns [0, n) at multiples of 16, a cache line of fp32, into about two parts for each thread. It is
// for chains over rows, which no cut of the columns can change. body has `scratch` rows of to-from elements.
func (d *Device) eachColumn(n, scratch int, body func(from, to int, buf [][]float32)) {
	const line = 16
	grain := max(1, (n/(2*d.pool.threads)+line-1)/line) * line
	d.pool.each(n, grain, func(_, from, to int) {
		s := rowScratches.Get().(*rowScratch)
		defer rowScratches.Put(s)
		body(from, to, s.take(scratch, to-from))
	})
}

// sumScratch is the number of scratch rows of a sum over rows: of a segment, a block and a run.
const sumScratch = 3

// rowSums are columns [from, to) of the gradient of a vector of n elements: of one that all segments are added to, or
// with a step of one for each segment.
type rowSums struct {
	all            []float32
	from, to, step int
}

// rowSums is the gradient of a vector of n elements, for rows in segments.
func (d *Device) rowSums(op, name string, dw kernels.Tensor, n int, segments []int32) rowSums {
	s := rowSums{to: n, step: kernels.SegmentStep(dw)}
	if s.step > 0 {
		n *= len(segments) - 1
	}
	s.all = vector(op, name, dw, n)
	return s
}

func (s rowSums) columns(from, to int) rowSums {
	s.from, s.to = s.from+from, s.from+to
	return s
}

// of is what a segment is added to.
func (s rowSums) of(segment int) []float32 { return s.all[segment*s.step+s.from : segment*s.step+s.to] }

// count is how many sums there are, for rows in segments.
func (s rowSums) count(segments []int32) int {
	if s.step == 0 {
		return 1
	}
	return len(segments) - 1
}

// sumRuns adds to sums a sum over the rows of segments. add has the rows [from, to) of a run, whose sum starts from +0.
// The scratch rows are as long as a sum.
func (d *Device) sumRuns(sums rowSums, scratch [][]float32, segments []int32, add func(run []float32, from, to int)) {
	n := sums.to - sums.from
	segment, block, run := scratch[0][:n], scratch[1][:n], scratch[2][:n]
	for i, first := range segments[:len(segments)-1] {
		clear(segment)
		for at, end := int(first), int(segments[i+1]); at < end; {
			clear(block)
			for next := min(at+kernels.RowBlock, end); at < next; at += kernels.RowRun {
				clear(run)
				add(run, at, min(at+kernels.RowRun, next))
				d.vec.Add(block, block, run)
			}
			at = min(at, end)
			d.vec.Add(segment, segment, block)
		}
		d.vec.Add(sums.of(i), sums.of(i), segment)
	}
}

// sumRows is sumRuns by rows: add adds what row t has to a run's chain.
func (d *Device) sumRows(sums rowSums, scratch [][]float32, segments []int32, add func(run []float32, t int)) {
	d.sumRuns(sums, scratch, segments, func(run []float32, from, to int) {
		for t := from; t < to; t++ {
			add(run, t)
		}
	})
}

// addRows adds the rows of x to sums, as a sum over rows.
func (d *Device) addRows(sums rowSums, x []float32, segments []int32) {
	n := sums.to
	d.sumRows(sums, newScratch(n), segments, func(run []float32, t int) {
		d.vec.Add(run, run, x[t*n:][:n])
	})
}

// newScratch is the scratch rows of a sum of n elements.
func newScratch(n int) [][]float32 {
	return [][]float32{make([]float32, n), make([]float32, n), make([]float32, n)}
}

// rowScratch is memory for a few rows. It grows to the longest row used.
type rowScratch struct {
	data []float32
	rows [][]float32
}

var rowScratches = sync.Pool{New: func() any { return new(rowScratch) }}

func (s *rowScratch) take(n, cols int) [][]float32 {
	if len(s.data) < n*cols {
		s.data = make([]float32, n*cols)
	}
	s.rows = s.rows[:0]
	for i := range n {
		s.rows = append(s.rows, s.data[i*cols:(i+1)*cols:(i+1)*cols])
	}
	return s.rows
}

// mustShape panics if t is not [rows, cols] of one group.
func mustShape(op, name string, t kernels.Tensor, rows, cols int) {
	if t.Groups != 1 || t.Rows != rows || t.Cols != cols {
		panic(fmt.Sprintf("cpu: %s: %s is %s, want [%d, %d]", op, name, t, rows, cols))
	}
}

// mustSegments panics if segments are not the offsets of so many rows.
func mustSegments(op string, segments []int32, rows int) {
	if len(segments) < 2 || segments[0] != 0 || int(segments[len(segments)-1]) != rows || !slices.IsSorted(segments) {
		panic(fmt.Sprintf("cpu: %s: segments %v of %d rows", op, segments, rows))
	}
}

// vector is the elements of a contiguous F32 tensor of n elements, whatever its shape.
func vector(op, name string, t kernels.Tensor, n int) []float32 {
	if t.Len() != n || !t.Contiguous() {
		panic(fmt.Sprintf("cpu: %s: %s is %s, want %d contiguous elements", op, name, t, n))
	}
	return t.F32s()
}

// indices is [vector] for int32.
func indices(op, name string, t kernels.Tensor, n int) []int32 {
	if t.Len() != n || !t.Contiguous() {
		panic(fmt.Sprintf("cpu: %s: %s is %s, want %d contiguous elements", op, name, t, n))
	}
	return t.I32s()
}
