package cpu

import (
	"math"
	"testing"

	"lockstep/kernels"
)

var normOps = []rowOp{
	{name: "RMSNorm", run: func(d *Device, c *rowCase) (rows, _ []kernels.Tensor) {
		x, w, out, rstd := c.part(c.strided(c.n, c.cols())), c.weight(1, c.cols()), c.part(c.strided(c.n, c.cols())),
			c.partOf(c.f32(1, c.n))
		d.RMSNorm(out, rstd, x, w, kernels.Norm{Eps: 1e-6, PlusOne: true})
		d.RMSNorm(x, rstd, x, w, kernels.Norm{Eps: 1e-6})
		return []kernels.Tensor{out, x, rstd}, nil
	}},
	{name: "RMSNormBackward", run: func(d *Device, c *rowCase) (rows, other []kernels.Tensor) {
		n := c.cols()
		x, dy, dx, w := c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.part(c.strided(c.n, n)), c.weight(1, n)
		rstd, dw := c.partOf(c.f32(1, c.n)), c.f32(1, n)
		d.RMSNormBackward(dx, dw, dy, x, rstd, w, kernels.Norm{}, oneSegment(dx))
		frozen := c.part(c.strided(c.n, n))
		d.RMSNormBackward(frozen, kernels.Tensor{}, dy, x, rstd, w, kernels.Norm{PlusOne: true}, oneSegment(frozen))
		return []kernels.Tensor{dx, frozen}, []kernels.Tensor{dw}
	}},
}

// The norm of a sum is that of the sum as it is stored, where this may write over either of its operands.
func TestAddRMSNorm(t *testing.T) {
	for _, def := range []kernels.Definition{kernels.Default(), roundedDefinition()} {
		d := newDevice(t, def, Auto, 2)
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			c := rowCase{seed: 19, dtype: dtype}
			c.start()
			const rows, n = 37, 130
			blank := func() kernels.Tensor { return c.strided(rows, n) }
			a, b, w, rstd, norm := blank(), blank(), c.weight(1, n), c.f32(1, rows), kernels.Norm{Eps: 1e-6}
			sum, want, wantRStd := blank(), blank(), c.f32(1, rows)
			d.Add(sum, a, b)
			d.RMSNorm(want, wantRStd, sum, w, norm)
			for _, at := range []kernels.Tensor{blank(), a, b} {
				x, y, out := blank(), blank(), blank()
				d.Copy(x, a)
				d.Copy(y, b)
				to := at
				switch at.Data {
				case a.Data:
					to = x
				case b.Data:
					to = y
				}
				d.AddRMSNorm(out, to, rstd, x, y, w, norm)
				for r := range rows {
					wantBits(t, "sum", to.RowRange(r, r+1), rowValues(sum.RowRange(r, r+1)))
					wantBits(t, "norm", out.RowRange(r, r+1), rowValues(want.RowRange(r, r+1)))
				}
				wantBits(t, "rstd", rstd, rowValues(wantRStd))
			}
		}
	}
}

// scalarTree is the definition's sum of one row, element by element.
func scalarTree(x []float32) float32 {
	lane := make([]float32, kernels.Default().Lanes)
	for i, v := range x {
		lane[i%len(lane)] += v
	}
	for s := len(lane) / 2; s >= 1; s /= 2 {
		for l := range s {
			lane[l] += lane[l+s]
		}
	}
	return lane[0]
}

func scalarRStd(x []float32, eps float32) float32 {
	sq := make([]float32, len(x))
	for i, v := range x {
		sq[i] = v * v
	}
	mean := scalarTree(sq) / float32(len(x))
	return 1 / float32(math.Sqrt(float64(mean+eps)))
}

// scalarNormGrad is rstd*(g - xh*(tree(g*xh)/n)) with g = dy*w, xh = x*rstd.
func scalarNormGrad(dy, x, w []float32, rstd float32) (grad, xh []float32) {
	g, p := make([]float32, len(x)), make([]float32, len(x))
	xh, grad = make([]float32, len(x)), make([]float32, len(x))
	for i := range x {
		g[i], xh[i] = dy[i]*w[i], x[i]*rstd
		p[i] = g[i] * xh[i]
	}
	mean := scalarTree(p) / float32(len(x))
	for i := range x {
		grad[i] = rstd * (g[i] - float32(xh[i]*mean))
	}
	return grad, xh
}

func TestRMSNormIsTheDefinition(t *testing.T) {
	for _, def := range []kernels.Definition{kernels.Default(), roundedDefinition()} {
		for _, norm := range []kernels.Norm{{Eps: 1e-5}, {Eps: 1e-6, PlusOne: true}} {
			normIsTheDefinition(t, def, norm)
		}
	}
}

// scalarNorm is the norm's output: rounded on the way where the definition does and the weight is stored as it
// multiplies.
func scalarNorm(def kernels.Definition, norm kernels.Norm, x, rstd, w float32) float32 {
	xh := x * rstd
	if def.Norm == kernels.ToBF16 && !norm.PlusOne {
		xh = kernels.NearestBF16(xh)
	}
	return float32(xh) * w
}

func normIsTheDefinition(t *testing.T, def kernels.Definition, norm kernels.Norm) {
	t.Helper()
	d := newDevice(t, def, Auto, 2)
	c := rowCase{seed: 5, dtype: kernels.F32}
	c.start()
	const rows, n = 150, 70
	x, w, out, rstd := c.strided(rows, n), c.weight(1, n), c.strided(rows, n), c.f32(1, rows)
	dy, dx, dw := c.strided(rows, n), c.strided(rows, n), c.f32(1, n)
	ws, wantDW, before := plusOne(rowValues(w), norm), rowValues(dw), rowValues(dx)
	d.RMSNorm(out, rstd, x, w, norm)
	d.RMSNormBackward(dx, dw, dy, x, rstd, w, norm, sumSegments)
	sum := rowSum{total: wantDW}
	for r := range rows {
		sum.row(r)
		xs, y := rowValues(x.RowRange(r, r+1)), make([]float32, n)
		rs := scalarRStd(xs, norm.Eps)
		dys := rowValues(dy.RowRange(r, r+1))
		grad, xh := scalarNormGrad(dys, xs, ws, rs)
		for i := range xs {
			y[i] = scalarNorm(def, norm, xs[i], rs, ws[i])
			grad[i] += before[r*n+i]
			sum.add(i, dys[i]*xh[i])
		}
		wantBits(t, "rstd", rstd.ColRange(r, r+1), []float32{rs})
		wantBits(t, "out", out.RowRange(r, r+1), y)
		wantBits(t, "dx", dx.RowRange(r, r+1), grad)
	}
	sum.row(-1)
	wantBits(t, "dw", dw, wantDW)
}

// sumSegments are two segments of 150 rows: blocks of 64, 6, 64 and 16 rows.
var sumSegments = []int32{0, 70, 150}

// rowSum is a sum over rows of sumSegments as kernels.Device states it.
type rowSum struct {
	total, segment, block []float32
	heads                 [][]float32 // chains of the present run
}

// row begins a row; one below 0 ends the sum.
func (s *rowSum) row(r int) {
	at := r // in its segment
	if r >= 70 {
		at -= 70
	}
	if r > 0 && at%64%8 != 0 {
		return
	}
	run := make([]float32, len(s.total))
	for _, head := range s.heads {
		addTo(run, head)
	}
	s.heads = nil
	if s.block == nil {
		s.block, s.segment = make([]float32, len(s.total)), make([]float32, len(s.total))
	}
	addTo(s.block, run)
	if r < 0 || at%64 == 0 {
		addTo(s.segment, s.block)
		s.block = make([]float32, len(s.total))
	}
	if r < 0 || at == 0 {
		addTo(s.total, s.segment)
		s.segment = make([]float32, len(s.total))
	}
}

func (s *rowSum) add(i int, v float32) { s.addHead(0, i, v) }

func (s *rowSum) addHead(h, i int, v float32) {
	for len(s.heads) <= h {
		s.heads = append(s.heads, make([]float32, len(s.total)))
	}
	s.heads[h][i] += v
}

// A batch of two segments gives the bits of the two alone, one after the other; one segment does not.
func TestSumOverRowsOfSegments(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 8, dtype: kernels.F32}
	c.start()
	const rows, n = 150, 70
	x, w, dy, dx, rstd := c.f32(rows, n), c.f32(1, n), c.f32(rows, n), c.f32(rows, n), c.f32(1, rows)
	joint, parts, one := rowTensor(kernels.F32, 1, n), rowTensor(kernels.F32, 1, n), rowTensor(kernels.F32, 1, n)
	d.RMSNormBackward(dx, joint, dy, x, rstd, w, kernels.Norm{}, sumSegments)
	for i := range 2 {
		from, to := int(sumSegments[i]), int(sumSegments[i+1])
		cut := func(t kernels.Tensor) kernels.Tensor { return t.RowRange(from, to) }
		d.RMSNormBackward(cut(dx), parts, cut(dy), cut(x), rstd.ColRange(from, to), w, kernels.Norm{},
			[]int32{0, int32(to - from)})
	}
	d.RMSNormBackward(dx, one, dy, x, rstd, w, kernels.Norm{}, oneSegment(dx))
	if err := diffRows(parts, joint, false); err != nil {
		t.Error(err)
	}
	if diffRows(one, joint, false) == nil {
		t.Error("segments make no difference: the test cannot fail")
	}
}

// norm64 is the loss sum(dy * RMSNorm(x)) in float64.
func norm64(x, w, dy []float64, n int, eps float64) float64 {
	loss := 0.0
	for r := 0; r < len(x); r += n {
		ss := 0.0
		for _, v := range x[r : r+n] {
			ss += v * v
		}
		rs := 1 / math.Sqrt(ss/float64(n)+eps)
		for i := range n {
			loss += dy[r+i] * x[r+i] * rs * w[i]
		}
	}
	return loss
}

func TestRMSNormGradient(t *testing.T) {
	d := newRowDevice(t, Auto, 2)
	c := rowCase{seed: 6, dtype: kernels.F32}
	c.start()
	const rows, n, eps = 5, 40, 1e-5
	x, w, dy, rstd := c.f32(rows, n), c.f32(1, n), c.f32(rows, n), c.f32(1, rows)
	dx, dw := rowTensor(kernels.F32, rows, n), rowTensor(kernels.F32, 1, n)
	for _, norm := range []kernels.Norm{{Eps: eps}, {Eps: eps, PlusOne: true}} {
		d.Zero(dx)
		d.Zero(dw)
		d.RMSNorm(rowTensor(kernels.F32, rows, n), rstd, x, w, norm)
		d.RMSNormBackward(dx, dw, dy, x, rstd, w, norm, oneSegment(dx))
		x64, dy64, w64 := to64(x), to64(dy), to64(w)
		if norm.PlusOne {
			for i := range w64 {
				w64[i]++
			}
		}
		checkGradient(t, "dx", x64, func(p []float64) float64 { return norm64(p, w64, dy64, n, eps) }, rowValues(dx))
		checkGradient(t, "dw", w64, func(p []float64) float64 { return norm64(x64, p, dy64, n, eps) }, rowValues(dw))
	}
}
