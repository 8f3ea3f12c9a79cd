package model_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/model/peft"
	"lockstep/parallel"
)

// narrowDevice has room for so many bytes of logits.
type narrowDevice struct {
	*cpu.Device
	spare int
}

func (d narrowDevice) Spare() int { return d.spare }

// Gradients of a batch are those of its segments one call after the other, whole or in chunks of the head's rows, and
// depend on where segments are.
func TestGradientsOfSegments(t *testing.T) {
	const rows = 200
	for _, c := range []segmentCase{
		{family: "qwen3_moe", dot: kernels.DotFMA, dtype: kernels.F32},
		{family: "llama3", dot: kernels.DotFMA, dtype: kernels.F32},
		{family: "glm5", dot: kernels.DotTC16, dtype: kernels.BF16},
		{family: "glm5", dot: kernels.DotTC16, dtype: kernels.BF16, lora: true}, // absorbed: keys and values share A
		{family: "qwen3_5_moe", dot: kernels.DotFMA, dtype: kernels.F32},
		{family: "nemotron_h_latent", dot: kernels.DotFMA, dtype: kernels.F32},
	} {
		cut := kernels.CutSegments([]int32{0, 70, rows}, 64) // 64, 6, 64, 64 and 2 rows
		const large, small = 1 << 20, 1                      // bytes of logits: all rows at once, or 64
		want := c.grads(t, large, rows, cut)
		for name, got := range map[string][][]float32{
			"in chunks":           c.grads(t, small, rows, cut),
			"segment by segment":  c.grads(t, large, rows, cut[:2], cut[1:3], cut[2:]),
			"two calls in chunks": c.grads(t, small, rows, cut[:3], cut[2:]),
		} {
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%+v: gradients %s differ", c, name)
			}
		}
		whole := []int32{0, 70, rows} // the longer one has three chunks
		want, got := c.grads(t, large, rows, whole), c.grads(t, small, rows, whole)
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%+v: gradients of a segment in chunks differ", c)
		}
		if slices.EqualFunc(c.grads(t, large, rows, cut), want, slices.Equal) {
			t.Errorf("%+v: segments make no difference: the test cannot fail", c)
		}
	}
}

// segmentCase is a golden's checkpoint that learns by one arithmetic, in full or by adapters of all projections.
type segmentCase struct {
	family string
	dot    kernels.DotMode
	dtype  kernels.DType
	lora   bool
}

// grads are the gradients of all parameters over sequences of 2 rows, in calls that each have the segments between some
// offsets, on a device with room for so many bytes of logits.
func (c segmentCase) grads(t *testing.T, spare, rows int, calls ...[]int32) (grads [][]float32) {
	t.Helper()
	def := kernels.Default()
	def.Dot = c.dot
	dev, err := cpu.New(def, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	err = parallel.Run([]kernels.Device{narrowDevice{dev, spare}}, func(r *parallel.Rank) error {
		m, err := model.LoadFolder(r.Dev, "testdata/"+c.family, "", model.Options{DType: c.dtype})
		if err != nil {
			return err
		}
		if c.lora {
			if err := m.AddLoRA(peft.Config{Rank: 4, Alpha: 8, Pattern: ".*"}); err != nil {
				return err
			}
			rng := rand.New(rand.NewPCG(5, 6))
			for _, p := range m.Params {
				if strings.Contains(p.Name, "lora_") {
					values := make([]byte, 0, p.W.Bytes())
					for range p.W.Len() {
						v := kernels.RoundBF16(float32(rng.NormFloat64() / 8))
						values = binary.LittleEndian.AppendUint16(values, v)
					}
					r.Dev.Write(p.W, values)
				}
			}
		}
		m.TrainAll()
		rng := rand.New(rand.NewPCG(3, 4))
		ids := make([]int32, rows)
		for i := range ids {
			ids[i] = int32(rng.IntN(30)) // many of a kind, for the embedding's sums
		}
		for _, offsets := range calls {
			stepOf(r, m, ids, offsets)
		}
		m.FinishGradients(r)
		for _, p := range m.Trained() {
			g := parallel.Download[float32](r, p.Grad)
			if !slices.ContainsFunc(g, func(v float32) bool { return v != 0 }) {
				t.Errorf("%+v: %s has no gradient", c, p.Name)
			}
			grads = append(grads, g)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return grads
}

// stepOf is a micro-batch of the rows between the first and the last offset, whose own rows are targets too.
func stepOf(r *parallel.Rank, m *model.Model, ids, offsets []int32) {
	defer r.Stack.Release(r.Stack.Mark())
	from, to := offsets[0], offsets[len(offsets)-1]
	l := &kernels.Layout{}
	for _, at := range offsets {
		l.Segments = append(l.Segments, at-from)
	}
	for at := from; at < to; at += 2 {
		l.Spans = append(l.Spans, kernels.Span{Row: int(at - from), Rows: 2})
	}
	own := ids[from:to]
	d := parallel.Upload(r, slices.Repeat([]float32{-1}, len(own)))
	m.Step(r, &model.Share{Passes: []*model.Pass{{Batch: model.NewBatch(r, own, l, nil),
		LogProb: r.Stack.New(kernels.F32, 1, len(own)), Targets: model.Targets{IDs: parallel.Upload(r, own)},
		Loss: model.Loss{Derivative: d.ColRange}}}}, nil)
}

// The head's gradients of each segment by itself, in chunks or whole, added to zeros or fresh, add up to that of all
// segments.
func TestHeadGradientsApart(t *testing.T) {
	const rows = 200
	offsets := []int32{0, 70, rows}
	grads := func(r *parallel.Rank, m *model.Model, apart, fresh bool) []float32 {
		defer r.Stack.Release(r.Stack.Mark())
		w, b := m.Head.W, model.NewBatch(r, make([]int32, rows), &kernels.Layout{Segments: offsets,
			Spans: []kernels.Span{{Rows: 70}, {Row: 70, Rows: rows - 70}}}, nil)
		sum := r.Stack.Zeros(kernels.F32, w.W.Rows, w.W.Cols)
		all := sum
		if apart {
			n := len(offsets) - 1
			b.Segments = &kernels.Groups{Offsets: b.Segments.Offsets, Count: n, Segments: 1}
			all = r.Stack.Zeros(kernels.F32, n*sum.Rows, sum.Cols).Stacked(0, n, sum.Rows)
		}
		if fresh {
			for i := range all.F32s() {
				all.F32s()[i] = float32(math.NaN())
			}
			w.StartAnew()
		}
		w.Grad = all
		w.HeadGrad = kernels.Tensor{}
		var x []float32
		var ids []int32
		for i := range rows {
			ids = append(ids, int32(i%30))
			for range w.W.Cols {
				x = append(x, float32(len(x)%17-8)/8)
			}
		}
		in := parallel.Upload(r, x).Reshape(rows, w.W.Cols)
		d := parallel.Upload(r, slices.Repeat([]float32{-1}, rows))
		m.Head.Backward(r, r.Stack.New(kernels.F32, rows, w.W.Cols), r.Stack.New(kernels.F32, 1, rows), in,
			model.Targets{IDs: parallel.Upload(r, ids)}, model.Loss{Derivative: d.ColRange}, b)
		if apart {
			r.Dev.Accumulate(sum.Reshape(1, sum.Len()), all.Reshape(all.Groups, sum.Len()))
		}
		return parallel.Download[float32](r, sum)
	}
	for _, spare := range []int{1, 1 << 20} { // chunks of 64 rows, or of a segment
		dev, err := cpu.New(kernels.Default(), cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		err = parallel.Run([]kernels.Device{narrowDevice{dev, spare}}, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, "testdata/qwen3_moe", "", model.Options{DType: kernels.F32})
			if err != nil {
				return err
			}
			m.TrainAll()
			want := grads(r, m, false, false)
			for _, c := range [][2]bool{{true, false}, {true, true}, {false, true}} {
				if got := grads(r, m, c[0], c[1]); !slices.Equal(got, want) || got[0] == 0 {
					t.Errorf("%d bytes of logits, apart %t, fresh %t: gradients of segments do not add up to that of "+
						"all", spare, c[0], c[1])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
