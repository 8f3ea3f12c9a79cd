package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// gradCase is a weight gradient [groups, n, k] over rows cut into segments: sizes[e*segments+s] rows of group e in
// segment s.
type gradCase struct {
	dot            kernels.DotMode
	in             kernels.DType
	n, k, segments int
	sizes          []int
	gap            int
}

func (c gradCase) String() string {
	return fmt.Sprintf("%s %s dw [%d, %d] over %v in %d segments, gap %d", c.dot, c.in, c.n, c.k, c.sizes, c.segments,
		c.gap)
}

func (c gradCase) groups() *kernels.Groups {
	offsets := []int32{0}
	for i, n := range c.sizes {
		offsets = append(offsets, offsets[i]+int32(n))
	}
	return &kernels.Groups{Offsets: kernels.WrapI32(offsets), Count: len(c.sizes) / c.segments, Segments: c.segments}
}

// want is dw after the sum of each segment.
func (c gradCase) want(dw, dy, x kernels.Tensor) []float32 {
	out := slices.Clone(dw.F32s())
	row := 0
	for i, rows := range c.sizes {
		for n := range c.n {
			for k := range c.k {
				a, b := make([]float32, rows), make([]float32, rows)
				for m := range rows {
					a[m], b[m] = element(dy, 0, row+m, n), element(x, 0, row+m, k)
				}
				at := (i/c.segments*c.n+n)*c.k + k
				out[at] += dotChain(c.dot, 0, a, b)
			}
		}
		row += rows
	}
	return out
}

func gradCases() []gradCase {
	var cases []gradCase
	for _, c := range []gradCase{
		{n: 1, k: 1, segments: 1, sizes: []int{1}},
		{n: 33, k: 18, segments: 1, sizes: []int{77}, gap: 3},
		{n: 40, k: 50, segments: 3, sizes: []int{20, 0, 37}},
		{n: 21, k: 64, segments: 2, sizes: []int{0, 0, 5, 30, 16, 0, 0, 1}, gap: 1},
		{n: 48, k: 16, segments: 1, sizes: []int{530}},
	} {
		for _, m := range []struct {
			dot kernels.DotMode
			in  kernels.DType
		}{{kernels.DotFMA, kernels.F32}, {kernels.DotFMA, kernels.BF16}, {kernels.DotTC16, kernels.BF16}} {
			c.dot, c.in = m.dot, m.in
			cases = append(cases, c)
		}
	}
	return cases
}

func TestWeightGradEqualsDefinition(t *testing.T) {
	all := map[kernels.DotMode][]*Device{}
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		def := kernels.Default()
		def.Dot = dot
		all[dot] = devices(t, def)
	}
	for i, c := range gradCases() {
		rng := rand.New(rand.NewPCG(7, uint64(i)))
		g := c.groups()
		rows := int(g.Offsets.I32s()[len(c.sizes)])
		dy, x := strided(rng, c.in, 1, rows, c.n, c.gap), strided(rng, c.in, 1, rows, c.k, c.gap)
		start := strided(rng, kernels.F32, g.Count, c.n, c.k, 0)
		want := c.want(start, dy, x)
		for _, d := range all[c.dot] {
			dw := strided(rng, kernels.F32, g.Count, c.n, c.k, 0)
			copy(dw.F32s(), start.F32s())
			d.WeightGrad(dw, dy, x, g)
			mustEqual(t, d.Name()+" "+c.String(), dw, want)
		}
	}
}

// A fresh gradient is that of zeros, whatever lies there, also of groups without rows, and of a chain that goes on.
func TestWeightGradFresh(t *testing.T) {
	for i, c := range append(gradCases(), gradCases()...) {
		def := kernels.Default()
		def.Dot = c.dot
		for _, d := range devices(t, def) {
			rng := rand.New(rand.NewPCG(19, uint64(i)))
			g := c.groups()
			g.Chain = i%2 == 1 && g.Segments == 1
			rows := int(g.Offsets.I32s()[len(c.sizes)])
			dy, x := strided(rng, c.in, 1, rows, c.n, c.gap), strided(rng, c.in, 1, rows, c.k, c.gap)
			want, dw := strided(rng, kernels.F32, g.Count, c.n, c.k, 0), strided(rng, kernels.F32, g.Count, c.n, c.k, 0)
			d.Zero(want)
			for i := range dw.F32s() {
				dw.F32s()[i] = float32(math.NaN())
			}
			d.WeightGrad(want, dy, x, g)
			g.Fresh = true
			d.WeightGrad(dw, dy, x, g)
			mustEqual(t, d.Name()+" "+c.String(), dw, want.F32s())
		}
	}
}

// A gradient over one micro-batch of segments equals the gradient over its segments one call after the other.
func TestWeightGradContinues(t *testing.T) {
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		def := kernels.Default()
		def.Dot = dot
		for _, d := range devices(t, def) {
			rng := rand.New(rand.NewPCG(8, 9))
			cuts := []int32{0, 50, 83, 200}
			dy, x := strided(rng, kernels.BF16, 1, 200, 24, 0), strided(rng, kernels.BF16, 1, 200, 40, 0)
			joint, parts := kernels.Wrap(make([]float32, 24*40), 24, 40), kernels.Wrap(make([]float32, 24*40), 24, 40)
			d.WeightGrad(joint, dy, x, &kernels.Groups{Offsets: kernels.WrapI32(cuts), Count: 1, Segments: 3})
			for i := range 3 {
				from, to := int(cuts[i]), int(cuts[i+1])
				one := &kernels.Groups{Offsets: kernels.WrapI32([]int32{0, int32(to - from)}), Count: 1, Segments: 1}
				d.WeightGrad(parts, dy.RowRange(from, to), x.RowRange(from, to), one)
			}
			mustEqual(t, d.Name(), parts, joint.F32s())
		}
	}
}

// The chain of a segment that goes on through several calls is that of one call.
func TestWeightGradChain(t *testing.T) {
	for _, dot := range []kernels.DotMode{kernels.DotFMA, kernels.DotTC16} {
		def := kernels.Default()
		def.Dot = dot
		for _, d := range devices(t, def) {
			rng := rand.New(rand.NewPCG(18, 9))
			dy, x := strided(rng, kernels.BF16, 1, 200, 24, 0), strided(rng, kernels.BF16, 1, 200, 40, 0)
			whole, sum := kernels.Wrap(make([]float32, 24*40), 24, 40), kernels.Wrap(make([]float32, 24*40), 24, 40)
			cuts := []int{0, 48, 64, 200} // at multiples of a step
			for i, from := range cuts[:3] {
				part := &kernels.Groups{Offsets: kernels.WrapI32([]int32{0, int32(cuts[i+1] - from)}), Count: 1,
					Segments: 1, Chain: true}
				d.WeightGrad(sum, dy.RowRange(from, cuts[i+1]), x.RowRange(from, cuts[i+1]), part)
			}
			one := &kernels.Groups{Offsets: kernels.WrapI32([]int32{0, 200}), Count: 1, Segments: 1}
			d.WeightGrad(whole, dy, x, one)
			mustEqual(t, d.Name(), sum, whole.F32s())
			two := &kernels.Groups{Offsets: kernels.WrapI32([]int32{0, 100, 200}), Count: 1, Segments: 2, Chain: true}
			mustPanic(t, "a chain of two segments", func() { d.WeightGrad(sum, dy, x, two) })
		}
	}
}
