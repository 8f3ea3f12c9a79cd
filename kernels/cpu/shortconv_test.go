package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"lockstep/kernels"
)

// convCase is a set of sequences for the short convolution.
type convCase struct {
	attnKind
	cols, taps int
	lengths    []int
	x, dout    [][]float32 // by sequence: [T, cols]
	w, bias    []float32
}

func newConvCase(rng *rand.Rand, kind attnKind, cols, taps int, biased bool, lengths ...int) *convCase {
	c := &convCase{attnKind: kind, cols: cols, taps: taps, lengths: lengths, w: attnRandom(rng, kind.dtype, cols*taps,
		1)}
	if biased {
		c.bias = attnRandom(rng, kind.dtype, cols, 1)
	}
	for _, n := range lengths {
		c.x, c.dout = append(c.x, attnRandom(rng, kind.dtype, n*cols, 1)),
			append(c.dout, attnRandom(rng, kind.dtype, n*cols, 1))
	}
	return c
}

func convCases(rng *rand.Rand, kind attnKind) []*convCase {
	return []*convCase{
		newConvCase(rng, kind, 40, 4, true, 1, 2, 3, 4, 70, 64), newConvCase(rng, kind, 100, 4, false, 5, 1, 90),
		newConvCase(rng, kind, 3, 2, true, 9, 66),
	}
}

func (c *convCase) weights() (w, bias kernels.Tensor) {
	w = attnTensor(c.dtype, c.w, c.cols, c.taps, 0)
	if c.bias != nil {
		bias = attnTensor(c.dtype, c.bias, 1, c.cols, 0)
	}
	return w, bias
}

// pack is all sequences in one batch, each a segment where segments is set.
func (c *convCase) pack(segments bool) (x, dout kernels.Tensor, l *kernels.Layout) {
	l = &kernels.Layout{Segments: []int32{0}}
	row := 0
	for _, n := range c.lengths {
		l.Spans = append(l.Spans, kernels.Span{Row: row, Rows: n})
		row += n
		if segments {
			l.Segments = append(l.Segments, int32(row))
		}
	}
	if !segments {
		l.Segments = append(l.Segments, int32(row))
	}
	return attnTensor(c.dtype, slices.Concat(c.x...), row, c.cols, 3), attnTensor(c.dtype, slices.Concat(c.dout...),
		row, c.cols, 1), l
}

func (c *convCase) train(dev *Device) (out kernels.Tensor, l *kernels.Layout) {
	x, _, l := c.pack(false)
	w, bias := c.weights()
	out = attnTensor(c.dtype, nil, x.Rows, c.cols, 2)
	dev.ShortConv(out, x, w, bias, kernels.Tensor{}, l)
	return out, l
}

// serve runs the case in slots that hold NaN before their sequence begins, in pieces of random lengths.
func (c *convCase) serve(dev *Device, rng *rand.Rand, maxRows int) kernels.Tensor {
	x, _, all := c.pack(false)
	out := attnTensor(c.dtype, nil, x.Rows, c.cols, 0)
	w, bias := c.weights()
	slots := rng.Perm(len(c.lengths) + 1)
	state := attnTensor(c.dtype, nil, len(slots)*(c.taps-1), c.cols, 0)
	state.Groups, state.Rows = len(slots), c.taps-1
	done := make([]int, len(c.lengths))
	for left := x.Rows; left > 0; {
		for _, s := range rng.Perm(len(c.lengths)) {
			n := min(1+rng.IntN(maxRows), c.lengths[s]-done[s])
			if n == 0 {
				continue
			}
			at := all.Spans[s].Row + done[s]
			l := &kernels.Layout{Spans: []kernels.Span{{Rows: n, Pos: done[s], Slot: slots[s]}},
				Segments: []int32{0, int32(n)}}
			dev.ShortConv(out.RowRange(at, at+n), x.RowRange(at, at+n), w, bias, state, l)
			done[s] += n
			left -= n
		}
	}
	return out
}

// sum is u of a position and channel, and the rows of x that it reads.
func (c *convCase) sum(seq, pos, ch int) float32 {
	u := float32(0)
	if c.bias != nil {
		u = c.bias[ch]
	}
	for j := range c.taps {
		if p := pos - (c.taps - 1) + j; p >= 0 {
			u += float32(c.w[ch*c.taps+j] * c.x[seq][p*c.cols+ch])
		}
	}
	return u
}

func TestShortConvEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for i, c := range convCases(rng, kind) {
			out, l := c.train(devs[0])
			for s, span := range l.Spans {
				for pos := range span.Rows {
					for ch, got := range attnRow(out, span.Row+pos) {
						u := c.sum(s, pos, ch)
						if want := attnRound(c.dtype, u*scalarSigmoid(c.exp2.Func(), u)); got != want {
							t.Fatalf("%v case %d: sequence %d position %d channel %d: %v, want %v", kind, i, s, pos, ch,
								got, want)
						}
					}
				}
			}
			for _, dev := range devs {
				again, _ := c.train(dev)
				mustSameRows(t, fmt.Sprintf("%v case %d on %s", kind, i, dev.Name()), again, out)
				mustSameRows(t, fmt.Sprintf("%v case %d row by row", kind, i), c.serve(dev, rng, 1), out)
				mustSameRows(t, fmt.Sprintf("%v case %d in pieces", kind, i), c.serve(dev, rng, 9), out)
			}
		}
	}
}

func mustSameRows(t *testing.T, what string, got, want kernels.Tensor) {
	t.Helper()
	for r := range want.Rows {
		if !sameBits(attnRow(got, r), attnRow(want, r)) {
			t.Fatalf("%s: row %d differs", what, r)
		}
	}
}

func TestShortConvBackwardEqualsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 34))
	for _, kind := range attnKinds {
		devs := attnDevices(t, kind)
		for i, c := range convCases(rng, kind) {
			start := attnRandom(rng, kernels.F32, c.cols*(c.taps+1), 1)
			for _, dev := range devs {
				c.checkBackward(t, fmt.Sprintf("%v case %d on %s", kind, i, dev.Name()), dev, start)
			}
		}
	}
}

func (c *convCase) checkBackward(t *testing.T, what string, dev *Device, start []float32) {
	t.Helper()
	x, dout, l := c.pack(true)
	w, bias := c.weights()
	dx := attnTensor(c.dtype, nil, x.Rows, c.cols, 4)
	n := c.cols * c.taps
	dw := kernels.Wrap(slices.Clone(start[:n]), c.cols, c.taps)
	var dbias kernels.Tensor
	if c.bias != nil {
		dbias = kernels.Wrap(slices.Clone(start[n:]), 1, c.cols)
	}
	dev.ShortConvBackward(dx, dw, dbias, dout, x, w, bias, l)
	want := slices.Clone(start)
	for s, span := range l.Spans {
		du, segment := make([]float32, span.Rows*c.cols), make([]float32, len(start)) // each sequence is one
		block, part := make([]float32, len(start)), make([]float32, len(start))
		for pos := range span.Rows {
			if pos%kernels.RowRun == 0 {
				addTo(block, part)
				clear(part)
			}
			if pos%kernels.RowBlock == 0 {
				addTo(segment, block)
				clear(block)
			}
			for ch := range c.cols {
				u := c.sum(s, pos, ch)
				sg := scalarSigmoid(c.exp2.Func(), u)
				du[pos*c.cols+ch] = c.dout[s][pos*c.cols+ch] * float32(sg*(1+float32(u*(1-sg))))
				for j := range c.taps {
					if p := pos - (c.taps - 1) + j; p >= 0 {
						part[ch*c.taps+j] += float32(c.x[s][p*c.cols+ch] * du[pos*c.cols+ch])
					}
				}
				part[n+ch] += du[pos*c.cols+ch]
			}
		}
		addTo(block, part)
		addTo(segment, block)
		addTo(want, segment)
		for pos := range span.Rows {
			for ch, got := range attnRow(dx, span.Row+pos) {
				sum := float32(0)
				for j := c.taps - 1; j >= 0; j-- {
					if p := pos + c.taps - 1 - j; p < span.Rows {
						sum += float32(du[p*c.cols+ch] * c.w[ch*c.taps+j])
					}
				}
				if got != attnRound(c.dtype, sum) {
					t.Fatalf("%s: dx of sequence %d position %d channel %d: %v, want %v", what, s, pos, ch, got, sum)
				}
			}
		}
	}
	if !sameBits(dw.F32s(), want[:n]) || c.bias != nil && !sameBits(dbias.F32s(), want[n:]) {
		t.Fatalf("%s: dw or dbias differs", what)
	}
}

func addTo(sum, x []float32) {
	for i, v := range x {
		sum[i] += v
	}
}

func TestShortConvGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(35, 36))
	dev := attnDevices(t, plainKind)[0]
	c := newConvCase(rng, plainKind, 3, 4, true, 9)
	x, dout, l := c.pack(false)
	w, bias := c.weights()
	dx, dw, dbias := attnTensor(kernels.F32, nil, 9, 3, 0), kernels.Wrap(make([]float32, 12), 3, 4),
		kernels.Wrap(make([]float32, 3), 1, 3)
	dev.ShortConvBackward(dx, dw, dbias, dout, x, w, bias, l)
	loss := func(x, w, bias []float64) (sum float64) {
		for pos := range 9 {
			for ch := range 3 {
				u := bias[ch]
				for j := range 4 {
					if p := pos - 3 + j; p >= 0 {
						u += w[ch*4+j] * x[p*3+ch]
					}
				}
				sum += float64(c.dout[0][pos*3+ch]) * u / (1 + math.Exp(-u))
			}
		}
		return sum
	}
	checkGradient(t, "dx", to64(x), func(p []float64) float64 { return loss(p, to64(w), to64(bias)) }, rowValues(dx))
	checkGradient(t, "dw", to64(w), func(p []float64) float64 { return loss(to64(x), p, to64(bias)) }, rowValues(dw))
	checkGradient(t, "dbias", to64(bias), func(p []float64) float64 {
		return loss(to64(x), to64(w), p)
	}, rowValues(dbias))
}
