package model

import (
	"fmt"
	"math"
	"slices"

	"lockstep/kernels"
	"lockstep/parallel"
)

// ropeConfig is what a family found about rotary positions.
type ropeConfig struct {
	headDim     int
	first       int  // first column of a head that is rotated
	interleaved bool // pairs are neighbours
	ropeTables
}

// ropeTables decide the tables: layers that agree in them share one pair.
type ropeTables struct {
	dim     int // columns of a head that are rotated
	theta   float64
	scaling ropeScaling
}

// ropeFields are the spellings of rotary settings in config.json: top-level rope_theta with rope_scaling, or one dict
// rope_parameters. A theta or factor inside a dict wins; a rope_scaling replaces rope_parameters.
type ropeFields struct {
	Theta      float64   `json:"rope_theta"` // a family may have set its default
	Partial    float64   `json:"partial_rotary_factor"`
	Parameters *ropeDict `json:"rope_parameters"`
	Scaling    *ropeDict `json:"rope_scaling"`
}

type ropeDict struct {
	Theta     float64  `json:"rope_theta"`
	Partial   float64  `json:"partial_rotary_factor"`
	Type      string   `json:"rope_type"`
	OldType   string   `json:"type"`
	Factor    float64  `json:"factor"`
	Original  float64  `json:"original_max_position_embeddings"`
	BetaFast  float64  `json:"beta_fast"`
	BetaSlow  float64  `json:"beta_slow"`
	Truncate  *bool    `json:"truncate"`
	Attention *float64 `json:"attention_factor"`
	MScale    float64  `json:"mscale"`
	MScaleAll float64  `json:"mscale_all_dim"`
	LowFreq   float64  `json:"low_freq_factor"`
	HighFreq  float64  `json:"high_freq_factor"`
}

// resolve is what the fields say of heads of headDim columns in a model of so many positions.
func (f ropeFields) resolve(positions, headDim int) (ropeConfig, error) {
	d := f.Parameters
	if f.Scaling != nil {
		d = f.Scaling
	}
	if d == nil {
		d = &ropeDict{}
	}
	c := ropeConfig{headDim: headDim, ropeTables: ropeTables{dim: headDim, theta: first(d.Theta, f.Theta, 10000)}}
	if c.theta <= 0 {
		return c, fmt.Errorf("rope_theta is %g: want a positive number", c.theta)
	}
	c.dim = int(float64(headDim) * first(d.Partial, f.Partial, 1))
	if c.dim <= 0 || c.dim > headDim || c.dim%2 != 0 {
		return c, fmt.Errorf("partial_rotary_factor gives %d rotary columns of the %d of a head: want a positive "+
			"even number",
			c.dim, headDim)
	}
	kind := d.Type
	if kind == "" {
		kind = d.OldType
	}
	var err error
	switch kind {
	case "", "default":
	case "yarn":
		c.scaling, err = d.yarn(positions)
	case "llama3":
		c.scaling, err = d.llama3()
	default:
		err = fmt.Errorf("rope_type %q: want default, yarn or llama3", kind)
	}
	return c, err
}

// first is the first of its arguments that is not 0.
func first(v ...float64) float64 {
	for _, x := range v {
		if x != 0 {
			return x
		}
	}
	return 0
}

// rotary is a pair of tables with the layers that read it.
type rotary struct {
	ropeTables
	layers []*kernels.Rope
}

// rope is the rotation of a layer, with tables of every position of the model.
func (b *builder) rope(c ropeConfig) *kernels.Rope {
	table := described(kernels.F32, 1, b.positions, c.dim/2)
	rope := &kernels.Rope{Cos: table, Sin: table, HeadDim: c.headDim, First: c.first, Interleaved: c.interleaved}
	at := slices.IndexFunc(b.ropes, func(r rotary) bool { return r.ropeTables == c.ropeTables })
	if at < 0 {
		at, b.ropes = len(b.ropes), append(b.ropes, rotary{ropeTables: c.ropeTables})
	}
	b.ropes[at].layers = append(b.ropes[at].layers, rope)
	return rope
}

// bytes is what both tables take of an arena.
func (r rotary) bytes() int {
	t := r.layers[0].Cos
	return 2 * kernels.ArenaBytes(t.DType, t.Rows, t.Cols)
}

// allocate fills tables on the device and gives them to the layers.
func (r rotary) allocate(dev kernels.Device, mem *kernels.Arena) {
	t := r.layers[0].Cos
	cos, sin := mem.New(t.DType, t.Rows, t.Cols), mem.New(t.DType, t.Rows, t.Cols)
	for _, l := range r.layers {
		l.Cos, l.Sin = cos, sin
	}
	if kernels.IsMeta(dev) {
		return
	}
	for from := 0; from < t.Rows; from += tablePiece {
		to := min(from+tablePiece, t.Rows)
		c, s := r.tables(from, to)
		writeValues(dev, cos.RowRange(from, to), c)
		writeValues(dev, sin.RowRange(from, to), s)
	}
}

// tablePiece is how many positions of a table are on the host at a time.
const tablePiece = 2048

// tables are cos and sin of position * frequency for positions [from, to), [to-from, dim/2], in float64, rounded once.
func (c ropeTables) tables(from, to int) (cos, sin []float32) {
	pairs, scale := c.dim/2, c.scaling.attention()
	cos, sin = make([]float32, (to-from)*pairs), make([]float32, (to-from)*pairs)
	for i := range pairs {
		f := c.scaling.frequency(i, c.dim, c.theta)
		for p := range to - from {
			s, c := math.Sincos(float64(from+p) * f)
			cos[p*pairs+i], sin[p*pairs+i] = float32(c*scale), float32(s*scale)
		}
	}
	return cos, sin
}

// rotated is a projection after its norm and rotation, with what the gradient needs.
type rotated struct {
	Y     kernels.Tensor // [T, heads*D]
	RStd  kernels.Tensor // of a norm by head, [T, heads]
	Whole NormSaved      // of a norm of the whole projection
}

// rotate is x [T, heads*D], which is kept, after its norm and rotary positions. The norm n is over a head, over the
// whole row, or nil. Where rope is nil there is neither.
func rotate(r *parallel.Rank, x kernels.Tensor, n *Norm, rope *kernels.Rope, b *Batch) (out rotated) {
	if rope == nil {
		return rotated{Y: x}
	}
	out.Y = r.Stack.New(x.DType, x.Rows, x.Cols)
	switch {
	case n == nil:
		r.Dev.HeadNormRope(out.Y, out.RStd, x, kernels.Tensor{}, b.Positions, *rope, kernels.Norm{})
	case n.W.W.Cols == rope.HeadDim:
		out.RStd = r.Stack.New(kernels.F32, x.Rows, x.Cols/rope.HeadDim)
		r.Dev.HeadNormRope(out.Y, out.RStd, x, n.W.W, b.Positions, *rope, n.Norm)
	default:
		y := n.Forward(r, x, &out.Whole)
		r.Dev.HeadNormRope(out.Y, out.RStd, y, kernels.Tensor{}, b.Positions, *rope, kernels.Norm{})
	}
	return out
}

// backward replaces d, the gradient of Y, by the gradient of x.
func (s *rotated) backward(r *parallel.Rank, d, x kernels.Tensor, n *Norm, rope *kernels.Rope, b *Batch) {
	if rope == nil {
		return
	}
	segments := b.Layout.Segments
	if n != nil && n.W.W.Cols == rope.HeadDim {
		r.Dev.HeadNormRopeBackward(d, n.W.Grad, d, x, s.RStd, n.W.W, b.Positions, *rope, n.Norm, segments)
		return
	}
	none := kernels.Tensor{}
	if n == nil {
		r.Dev.HeadNormRopeBackward(d, none, d, x, none, none, b.Positions, *rope, kernels.Norm{}, segments)
		return
	}
	mark := r.Stack.Mark()
	dy := r.Stack.New(d.DType, d.Rows, d.Cols)
	r.Dev.HeadNormRopeBackward(dy, none, d, x, none, none, b.Positions, *rope, kernels.Norm{}, segments)
	r.Dev.Zero(d)
	n.Backward(r, d, dy, b, &s.Whole)
	r.Stack.Release(mark)
}

// applyRope writes x with rotary positions to out, which may be x.
func applyRope(r *parallel.Rank, out, x kernels.Tensor, rope *kernels.Rope, b *Batch) {
	r.Dev.HeadNormRope(out, kernels.Tensor{}, x, kernels.Tensor{}, b.Positions, *rope, kernels.Norm{})
}

// applyRopeBackward is the gradient of applyRope, in place.
func applyRopeBackward(r *parallel.Rank, d kernels.Tensor, rope *kernels.Rope, b *Batch) {
	none := kernels.Tensor{}
	r.Dev.HeadNormRopeBackward(d, none, d, d, none, none, b.Positions, *rope, kernels.Norm{}, b.Layout.Segments)
}
