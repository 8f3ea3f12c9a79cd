package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model/checkpoint"
	"lockstep/model/peft"
	"lockstep/parallel"
	"lockstep/quant"
)

// mxfp8 is what a block is left with, by the words of the format: a scale 2^e, e the least with amax <= 448 * 2^e, and
// of the E4M3 numbers the one nearest to x * 2^-e, of two that are as near the one whose code is even.
func mxfp8(block []*float64) {
	amax := 0.0
	for _, x := range block {
		amax = max(amax, math.Abs(*x))
	}
	e := -127
	for amax > 448*math.Ldexp(1, e) {
		e++
	}
	for _, x := range block {
		best, nearest := 0, math.Inf(1)
		for code := range 127 {
			if d := math.Abs(math.Abs(*x)*math.Ldexp(1, -e) - e4m3(code)); d < nearest || d == nearest && code%2 == 0 {
				best, nearest = code, d
			}
		}
		*x = math.Copysign(e4m3(best)*math.Ldexp(1, e), *x)
	}
}

// e4m3 is the number of a code without a sign: four bits of exponent, three of fraction.
func e4m3(code int) float64 {
	if exponent := code >> 3; exponent > 0 {
		return math.Ldexp(8+float64(code&7), exponent-10)
	}
	return math.Ldexp(float64(code&7), -9)
}

// exactMatrix has numbers whose sums are exact in fp32, so that the order of a sum does not matter.
type exactMatrix struct {
	rows, cols int
	x          []float64
}

func (m exactMatrix) at(r, c int) *float64 { return &m.x[r*m.cols+c] }

// drawIntegers draws a matrix of integers up to a size.
func drawIntegers(rng *rand.Rand, rows, cols, most int) exactMatrix {
	m := exactMatrix{rows, cols, make([]float64, rows*cols)}
	for i := range m.x {
		m.x[i] = float64(rng.IntN(2*most+1) - most)
	}
	return m
}

// byColumns is a copy rounded in blocks of 32 columns, where an encoding asks for it.
func (m exactMatrix) byColumns(e quant.Encoding) exactMatrix {
	return m.rounded(e, []int32{0, int32(m.rows)}, 1, 32)
}

// byRows is a copy rounded in blocks of 32 rows between offsets.
func (m exactMatrix) byRows(e quant.Encoding, offsets []int32) exactMatrix {
	return m.rounded(e, offsets, 32, 1)
}

func (m exactMatrix) rounded(e quant.Encoding, offsets []int32, high, wide int) exactMatrix {
	m.x = append([]float64{}, m.x...)
	if e == quant.AsTrained {
		return m
	}
	for i, from := range offsets[:len(offsets)-1] {
		for r := int(from); r < int(offsets[i+1]); r += high {
			for c := 0; c < m.cols; c += wide {
				var block []*float64
				for row := r; row < min(r+high, int(offsets[i+1])); row++ {
					for col := c; col < min(c+wide, m.cols); col++ {
						block = append(block, m.at(row, col))
					}
				}
				mxfp8(block)
			}
		}
	}
	return m
}

// times is m w, or with transposed m w^T, each row by the matrix of its group.
func (m exactMatrix) times(groupOf []int, w []exactMatrix, transposed bool) exactMatrix {
	n := w[0].cols
	if transposed {
		n = w[0].rows
	}
	out := exactMatrix{m.rows, n, make([]float64, m.rows*n)}
	for r := range m.rows {
		of := w[groupOf[r]]
		for c := range n {
			for k := range m.cols {
				if transposed {
					*out.at(r, c) += *m.at(r, k) * *of.at(c, k)
				} else {
					*out.at(r, c) += *m.at(r, k) * *of.at(k, c)
				}
			}
		}
	}
	return out
}

// columns is a copy of columns [from, to).
func (m exactMatrix) columns(from, to int) exactMatrix {
	out := exactMatrix{m.rows, to - from, nil}
	for r := range m.rows {
		out.x = append(out.x, m.x[r*m.cols+from:r*m.cols+to]...)
	}
	return out
}

// add adds a matrix to columns from one on.
func (m exactMatrix) add(o exactMatrix, from int) {
	for r := range o.rows {
		for c := range o.cols {
			*m.at(r, from+c) += *o.at(r, c)
		}
	}
}

// outer is the sum over the rows of each group of dy^T x, as one list.
func outer(dy, x exactMatrix, groupOf []int, groups int) (sums []float64) {
	sums = make([]float64, groups*dy.cols*x.cols)
	for r, g := range groupOf {
		for n := range dy.cols {
			for k := range x.cols {
				sums[(g*dy.cols+n)*x.cols+k] += *dy.at(r, n) * *x.at(r, k)
			}
		}
	}
	return sums
}

// put draws integers into a parameter, codes or numbers, and returns its matrices.
func put(rng *rand.Rand, p *Param, most int) (all []exactMatrix) {
	t := p.W
	for g := range t.Groups {
		m := drawIntegers(rng, t.Rows, t.Cols, most)
		values := make([]float32, len(m.x))
		for i, x := range m.x {
			values[i] = float32(x)
		}
		if all = append(all, m); p.Q != nil {
			p.Q.EncodeRows(quant.MXFP8, g*t.Rows, values)
			continue
		}
		for r := range t.Rows {
			copy(t.F32s()[(g*t.Rows+r)*t.Stride:][:t.Cols], values[r*t.Cols:])
		}
	}
	return all
}

// equalExactly compares numbers, all of which fp32 holds with room for their sums.
func equalExactly(t *testing.T, what string, got []float32, want []float64) {
	t.Helper()
	for i, x := range want {
		if math.Abs(x) >= 1<<24 {
			t.Fatalf("%s: %v is too large to be exact", what, x)
		}
		if float64(got[i]) != x {
			t.Errorf("%s: element %d of %d is %v, want %v", what, i, len(want), got[i], x)
			return
		}
	}
}

// roundedCase is one Linear with or without adapters, by one definition, with its use of an input.
type roundedCase struct {
	acts, grads quant.Encoding
	adapters    bool
	use         inputUse
	spread      spreadOf
	sizes       drawnSizes
}

// drawnSizes are those of a model; zero: qwen3_moe's.
type drawnSizes struct{ hidden, inner, head, rank int }

// config is qwen3_moe's with the case's sizes.
func (c roundedCase) config(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/qwen3_moe/config.json")
	if err == nil && c.sizes != (drawnSizes{}) {
		text, err = checkpoint.EditConfig(text, func(fields map[string]any) {
			fields["hidden_size"], fields["moe_intermediate_size"] = c.sizes.hidden, c.sizes.inner
			fields["head_dim"] = c.sizes.head
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// peft puts adapters on one projection of each Linear, or, where sizes are drawn, on two of three that are stacked.
func (c roundedCase) peft() peft.Config {
	if c.sizes == (drawnSizes{}) {
		return peft.Config{Rank: 4, Alpha: 8, Targets: []string{"o_proj"},
			TargetParameters: []string{"mlp.experts.down_proj"}}
	}
	return peft.Config{Rank: c.sizes.rank, Alpha: 2 * float64(c.sizes.rank),
		Targets:          []string{"q_proj", "v_proj", "o_proj"},
		TargetParameters: []string{"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}}
}

// spreadOf says which operand has a few numbers so large that codes leave other numbers of their block a bit or two:
// elsewhere what a number is rounded to hardly depends on its block.
type spreadOf int

const (
	spreadNone spreadOf = iota
	spreadInput
	spreadGradient
)

// withLarge puts 2^20 at about one place in 64.
func (m exactMatrix) withLarge(rng *rand.Rand) exactMatrix {
	for i := range m.x {
		if rng.IntN(64) == 0 {
			m.x[i] = 1 << 20
		}
	}
	return m
}

// operands are an input and a gradient, and the size of weights with which their sums are exact.
func (c roundedCase) operands(rng *rand.Rand, rows, in, out int) (x, dy exactMatrix, weights int) {
	switch c.spread {
	case spreadInput:
		return drawIntegers(rng, rows, in, 30).withLarge(rng), drawIntegers(rng, rows, out, 1), 1
	case spreadGradient:
		return drawIntegers(rng, rows, in, 1), drawIntegers(rng, rows, out, 30).withLarge(rng), 1
	}
	return drawIntegers(rng, rows, in, 120), drawIntegers(rng, rows, out, 30), 7
}

// Gradients with definition.acts and grads are what another writing has, which knows the format and the rule by their
// words alone, of a dense weight and of experts whose groups have segments: dy is rounded in blocks of columns for dx,
// dy and what forward read in blocks of rows, within segments, for dw. Adapters and what goes through them are not
// rounded, whoever else reads the input.
func TestRoundedGradients(t *testing.T) {
	const e = quant.MXFP8
	for _, acts := range []quant.Encoding{quant.AsTrained, e} {
		for _, grads := range []quant.Encoding{quant.AsTrained, e} {
			for _, adapters := range []bool{false, true} {
				for _, use := range []inputUse{sharedInput, ownInput} {
					roundedCase{acts, grads, adapters, use, spreadNone, drawnSizes{}}.run(t)
				}
			}
			roundedCase{acts, grads, false, sharedInput, spreadInput, drawnSizes{}}.run(t)
			roundedCase{acts, grads, false, sharedInput, spreadGradient, drawnSizes{}}.run(t)
		}
	}
}

// The same of drawn sizes: blocks are cut at the last column, and of stacked projections those of the gradient go on
// from one into the next, while two of three have adapters, which read what no block has touched.
func TestRoundedGradientsOfSizes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const e = quant.MXFP8
	for range 6 {
		sizes := drawnSizes{33 + rng.IntN(60), 33 + rng.IntN(40), 2 * (1 + rng.IntN(11)), 1 + rng.IntN(6)}
		use := []inputUse{sharedInput, ownInput}[rng.IntN(2)]
		roundedCase{e, e, true, use, spreadNone, sizes}.run(t)
		roundedCase{e, e, false, use, []spreadOf{spreadInput, spreadGradient}[rng.IntN(2)], sizes}.run(t)
	}
}

func (c roundedCase) run(t *testing.T) {
	def := kernels.Default()
	def.Acts, def.Grads = c.acts, c.grads
	dev, err := cpu.New(def, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		// where nothing is rounded projections are in codes all the same
		m, err := Build(dev, c.config(t), Options{Encode: DefaultEncode(quant.MXFP8)})
		if err != nil {
			return err
		}
		if c.adapters {
			of, err := m.PEFT(c.peft())
			if err != nil {
				return err
			}
			if err := m.AddLoRA(of); err != nil {
				return err
			}
		}
		m.TrainAll()
		attention, mixture := m.Blocks[0][0].Layer.(*Attention), m.Blocks[0][1].Layer.(*MoE)
		experts := mixture.Experts
		dense, grouped := []*Linear{attention.O}, []*Linear{experts.Down}
		if c.sizes != (drawnSizes{}) {
			dense, grouped = append(dense, attention.QKV), append(grouped, experts.GateUp)
		}
		for _, l := range dense {
			c.compare(t, r, l, []int32{0, 37, 70}, 1)
		}
		offsets, count := []int32{0}, experts.Down.W.W.Groups
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2 * count {
			offsets = append(offsets, offsets[len(offsets)-1]+int32(rng.IntN(3)*rng.IntN(20)))
		}
		for _, l := range grouped {
			c.compare(t, r, l, offsets, count)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// compare runs a Linear over rows with groups and segments between offsets.
func (c roundedCase) compare(t *testing.T, r *parallel.Rank, l *Linear, offsets []int32, groups int) {
	rng := rand.New(rand.NewPCG(3, 4))
	n := int(offsets[len(offsets)-1])
	rows := &kernels.Groups{Offsets: parallel.Upload(r, offsets), Count: groups,
		Segments: (len(offsets) - 1) / groups}
	rows.Offsets.DType = kernels.I32
	g, groupOf := rows, make([]int, 0, n)
	for i := range offsets[1:] {
		for range offsets[i+1] - offsets[i] {
			groupOf = append(groupOf, i/rows.Segments)
		}
	}
	if groups == 1 {
		g = nil
	}
	x, dy, weights := c.operands(rng, n, l.W.W.Cols, l.W.W.Rows)
	w := put(rng, l.W, weights)
	upload := func(m exactMatrix) kernels.Tensor {
		values := make([]float32, len(m.x))
		for i, v := range m.x {
			values[i] = float32(v)
		}
		return parallel.Upload(r, values).Reshape(m.rows, m.cols)
	}
	a, b := map[*Sub][]exactMatrix{}, map[*Sub][]exactMatrix{}
	for _, of := range l.adapters() {
		a[of.Sub], b[of.Sub] = put(rng, of.LoRA.A, 1), put(rng, of.LoRA.B, 1)
	}
	var s LinearSaved
	input := upload(x)
	y := l.forwardOf(r, n, c.use, func() kernels.Tensor { return input }, g, nil, 0, &s)
	got := l.Backward(r, upload(dy), g, rows, &s)

	name := fmt.Sprintf("%+v, %d groups: ", c, groups)
	read := x.byColumns(c.acts)
	wantY, dx := read.times(groupOf, w, true), dy.byColumns(c.grads).times(groupOf, w, false)
	for _, of := range l.adapters() {
		own := dy.columns(of.From, of.To)
		u, du := x.times(groupOf, a[of.Sub], true), own.times(groupOf, b[of.Sub], false)
		for i := range u.x {
			u.x[i], du.x[i] = u.x[i]*float64(of.LoRA.Scale), du.x[i]*float64(of.LoRA.Scale)
		}
		wantY.add(u.times(groupOf, b[of.Sub], true), of.From)
		dx.add(du.times(groupOf, a[of.Sub], false), 0)
		equalExactly(t, name+of.Module+" dA", ReadValues(r.Dev, of.LoRA.A.Grad), outer(du, x, groupOf, groups))
		equalExactly(t, name+of.Module+" dB", ReadValues(r.Dev, of.LoRA.B.Grad), outer(own, u, groupOf, groups))
	}
	if !c.adapters {
		equalExactly(t, name+"dw", ReadValues(r.Dev, l.W.Grad), outer(dy.byRows(c.grads, offsets),
			read.byRows(c.grads, offsets), groupOf, groups))
	}
	equalExactly(t, name+"y", ReadValues(r.Dev, y), wantY.x)
	equalExactly(t, name+"dx", ReadValues(r.Dev, got), dx.x)
}

// With products of codes gradients are straight through: dx is of the weight's numbers, dw of the numbers that the
// input's codes stand for, and those of adapters of the input as it is.
func TestGradientsOfCodes(t *testing.T) {
	def := kernels.Default()
	def.Dot, def.Acts = kernels.DotTC16, quant.FP8x128
	dev, err := cpu.New(def, cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	c := roundedCase{adapters: true}
	if err := parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
		m, err := Build(dev, c.config(t), Options{DType: kernels.BF16, Encode: DefaultEncode(quant.FP8)})
		if err != nil {
			return err
		}
		m.Initialise(1)
		m.TrainAll()
		l, rng := m.Blocks[0][0].Layer.(*Attention).O, rand.New(rand.NewPCG(1, 8))
		const n = 37
		draw := func(cols int) (kernels.Tensor, []float32) {
			values, out := make([]float32, n*cols), r.Stack.New(kernels.BF16, n, cols)
			for i := range values {
				values[i] = kernels.NearestBF16(float32(rng.NormFloat64()))
			}
			r.Dev.Write(out, checkpoint.Round(values, kernels.BF16))
			return out, values
		}
		x, values := draw(l.W.W.Cols)
		dy, _ := draw(l.W.W.Rows)
		rows := &kernels.Groups{Offsets: parallel.Upload(r, []int32{0, 20, n}), Count: 1, Segments: 2}
		rows.Offsets.DType = kernels.I32
		var s LinearSaved
		l.forwardOf(r, n, sharedInput, func() kernels.Tensor { return x }, nil, nil, 0, &s)
		dx := l.Backward(r, dy, nil, rows, &s)

		quant.FP8x128.Round(values, n, x.Cols)
		read, w := r.Stack.New(kernels.BF16, n, x.Cols), r.Stack.New(kernels.BF16, l.W.W.Rows, l.W.W.Cols)
		r.Dev.Write(read, checkpoint.Round(values, kernels.BF16))
		dev.Dequantize(w, *l.W.Q)
		dw, wantDx := r.Stack.New(kernels.F32, w.Rows, w.Cols), r.Stack.New(kernels.BF16, n, x.Cols)
		r.Dev.Zero(dw)
		r.Dev.WeightGrad(dw, dy, read, rows)
		r.Dev.MatMulT(wantDx, nil, kernels.Term{X: dy, W: w})
		for name, of := range map[string][2]kernels.Tensor{"dw": {l.W.Grad, dw}, "dx": {dx, wantDx}} {
			if !slices.Equal(ReadValues(r.Dev, of[0]), ReadValues(r.Dev, of[1])) {
				t.Errorf("%s differs", name)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
