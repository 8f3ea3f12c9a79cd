package cpu

import (
	"fmt"
	"slices"

	"lockstep/kernels"
)

// headRope is one HeadNormRope or its gradient: heads of D elements in x [T, heads*D], one rotation for each row.
type headRope struct {
	d           *Device
	in          matrix
	heads       int
	dim         int // D
	pairs       int
	first       int // the first rotated column
	interleaved bool
	rs          []float32
	positions   []int32
	cos, sin    matrix // [positions, pairs]
	weight      matrix // [1, D]; unused where normed is false
	normed      bool
	norm        kernels.Norm
}

func (d *Device) headRope(op string, x, rstd, w, positions kernels.Tensor, rope kernels.Rope,
	norm kernels.Norm) headRope {
	pairs := rope.Cos.Cols
	if pairs == 0 || rope.HeadDim <= 0 || x.Cols%rope.HeadDim != 0 || rope.First < 0 ||
		rope.First+2*pairs > rope.HeadDim || rope.Interleaved && !w.IsNil() {
		panic(fmt.Sprintf("cpu: %s: heads of %s, norm %s, with %+v", op, x, w, rope))
	}
	mustShape(op, "sin", rope.Sin, rope.Cos.Rows, pairs)
	h := headRope{
		d: d, in: d.matrix(x), heads: x.Cols / rope.HeadDim, dim: rope.HeadDim, pairs: pairs, first: rope.First,
		interleaved: rope.Interleaved,
		cos:         d.matrix(rope.Cos), sin: d.matrix(rope.Sin), norm: norm,
	}
	h.positions = indices(op, "positions", positions, x.Rows)
	mustIndex(op, h.positions, rope.Cos.Rows)
	if !w.IsNil() {
		mustShape(op, "w", w, 1, h.dim)
		h.normed, h.weight, h.rs = true, d.matrix(w), vector(op, "rstd", rstd, x.Rows*h.heads)
	}
	return h
}

// weights is the norm's weight, nil without one.
func (h *headRope) weights(buf []float32) []float32 {
	if !h.normed {
		return nil
	}
	return h.weight.norm(h.norm, buf)
}

// tables are cos and sin of row t.
func (h *headRope) tables(t int) (cos, sin []float32) {
	p := int(h.positions[t])
	return h.cos.load(p, nil), h.sin.load(p, nil)
}

// fused reports whether norm and rotation are one loop: all columns of a head are rotated, as halves.
func (h *headRope) fused() bool { return 2*h.pairs == h.dim && !h.interleaved }

// HeadNormRope normalises each head of x as RMSNorm does (z = (x*rstd)*w; w nil: z = x) and rotates pairs of its
// columns (Su et al., arXiv 2104.09864), as kernels.Device states it. x, out [T, heads*D]; rstd F32 [T, heads];
// positions int32 [T].
func (d *Device) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	const op = "head norm and rope"
	mustShape(op, "out", out, x.Rows, x.Cols)
	h, o := d.headRope(op, x, rstd, w, positions, rope, norm), d.matrix(out)
	d.eachRow(x.Rows, x.Cols, 2, func(from, to int, buf [][]float32) {
		ws := h.weights(buf[1])
		for t := from; t < to; t++ {
			cos, sin := h.tables(t)
			xs, ys := h.in.load(t, buf[0]), o.target(t, buf[0])
			for i := range h.heads {
				lo, hi := i*h.dim, (i+1)*h.dim
				if h.normed {
					h.rs[t*h.heads+i] = rStd(d.vec.TreeDot(xs[lo:hi], xs[lo:hi]), h.dim, norm.Eps)
				}
				h.forward(ys[lo:hi], xs[lo:hi], t*h.heads+i, ws, cos, sin)
			}
			o.store(t, ys)
		}
	})
}

// forward is head at of the tensor, y from x; y may be x.
func (h *headRope) forward(y, x []float32, at int, w, cos, sin []float32) {
	switch ops := h.d.vec; {
	case h.fused() && h.normed && !h.d.roundsNorm(h.norm):
		ops.NormRotate(y, x, h.rs[at], w, cos, sin)
		return
	case h.fused() && !h.normed:
		ops.Rotate(y, x, cos, sin)
		return
	case h.normed:
		h.d.normScale(y, x, h.rs[at], w, h.norm)
	default:
		copy(y, x)
	}
	rotated := y[h.first : h.first+2*h.pairs]
	if h.interleaved {
		h.d.vec.RotatePairs(rotated, cos, sin)
	} else {
		h.d.vec.Rotate(rotated, rotated, cos, sin)
	}
}

// HeadNormRopeBackward writes dx = round(.) of the gradient through rotation and norm, and adds dz*xh to dw F32 [1, D]
// as a sum over rows, heads ascending inside a run. dw may be nil; with w nil there is no norm. dx may be dout.
func (d *Device) HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions kernels.Tensor, rope kernels.Rope,
	norm kernels.Norm, segments []int32) {
	const op = "head norm and rope backward"
	mustShape(op, "dx", dx, x.Rows, x.Cols)
	mustShape(op, "dout", dout, x.Rows, x.Cols)
	h, grad, dy := d.headRope(op, x, rstd, w, positions, rope, norm), d.matrix(dx), d.matrix(dout)
	if !dw.IsNil() { // before dx, which may be dout
		if !h.normed {
			panic("cpu: " + op + ": gradient of a weight that is nil")
		}
		mustSegments(op, segments, x.Rows)
		h.weightGrad(h.d.rowSums(op, "dw", dw, h.dim, segments), &dy, segments)
	}
	d.eachRow(x.Rows, x.Cols, 3, func(from, to int, buf [][]float32) {
		ws := h.weights(buf[2])
		for t := from; t < to; t++ {
			cos, sin := h.tables(t)
			ds, zs, xs := dy.load(t, buf[0]), grad.target(t, buf[0]), h.in.load(t, buf[1])
			for i := range h.heads {
				lo, hi := i*h.dim, (i+1)*h.dim
				h.backward(zs[lo:hi], ds[lo:hi], xs[lo:hi], t*h.heads+i, ws, cos, sin)
			}
			grad.store(t, zs)
		}
	})
}

// backward is head at of the tensor, g from d and x; g may be d.
func (h *headRope) backward(g, d, x []float32, at int, w, cos, sin []float32) {
	ops := h.d.vec
	switch {
	case h.fused() && h.normed:
		ops.UnrotateMul(g, d, w, cos, sin)
	case h.fused():
		ops.Unrotate(g, d, cos, sin)
	default:
		copy(g, d)
		rotated := g[h.first : h.first+2*h.pairs]
		if h.interleaved {
			ops.UnrotatePairs(rotated, cos, sin)
		} else {
			ops.Unrotate(rotated, rotated, cos, sin)
		}
		if h.normed {
			ops.Mul(g, g, w)
		}
	}
	if h.normed {
		r := h.rs[at]
		ops.NormGrad(g, g, x, r, ops.TreeScaled(g, x, r)/float32(h.dim))
	}
}

// weightGrad adds dz*xh of every head to dw. Threads divide the columns; a rotated pair stays together, since a
// rotation mixes its two columns.
func (h *headRope) weightGrad(dw rowSums, dy *matrix, segments []int32) {
	h.unrotatedGrad(dw.columns(0, h.first), dy, segments, 0)
	h.unrotatedGrad(dw.columns(h.first+2*h.pairs, h.dim), dy, segments, h.first+2*h.pairs)
	h.d.eachColumn(h.pairs, 4, func(from, to int, buf [][]float32) {
		n, left, right := to-from, dw.columns(h.first+from, h.first+to),
			dw.columns(h.first+h.pairs+from, h.first+h.pairs+to)
		sums, heads := rowSums{to: 2 * n}, make([]float32, h.heads*2*n) // of both sides; heads: the chain of each
		if dw.step > 0 {
			sums.step = 2 * n
		}
		for i := range dw.count(segments) {
			sums.all = slices.Concat(sums.all, left.of(i), right.of(i))
		}
		h.d.sumRuns(sums, newScratch(2*n), segments, func(run []float32, first, end int) {
			clear(heads)
			for t := first; t < end; t++ {
				h.addRow(heads, dy, t, from, to, buf)
			}
			h.addHeads(run, heads)
		})
		for i := range dw.count(segments) {
			copy(left.of(i), sums.of(i)[:n])
			copy(right.of(i), sums.of(i)[n:])
		}
	})
}

// addHeads adds the chains of a run's heads.
func (h *headRope) addHeads(run, heads []float32) {
	for n := len(run); len(heads) > 0; heads = heads[n:] {
		h.d.vec.Add(run, run, heads[:n])
	}
}

// addRow adds dz*xh of pairs [from, to) of every head of row t to the heads' chains, [heads, 2, to-from].
func (h *headRope) addRow(heads []float32, dy *matrix, t, from, to int, buf [][]float32) {
	cos, sin := h.tables(t)
	n := to - from
	for i := range h.heads {
		lo := i*h.dim + h.first + from
		hi := lo + h.pairs
		h.d.vec.UnrotateAddMul(heads[2*i*n:][:n], heads[(2*i+1)*n:][:n],
			dy.loadPart(t, lo, lo+n, buf[0]), dy.loadPart(t, hi, hi+n, buf[1]),
			h.in.loadPart(t, lo, lo+n, buf[2]), h.in.loadPart(t, hi, hi+n, buf[3]),
			cos[from:to], sin[from:to], h.rs[t*h.heads+i])
	}
}

// unrotatedGrad adds dz*xh of columns that are not rotated, from column at on, to dw.
func (h *headRope) unrotatedGrad(dw rowSums, dy *matrix, segments []int32, at int) {
	h.d.eachColumn(dw.to-dw.from, 2+sumScratch, func(from, to int, buf [][]float32) {
		n := to - from
		heads := make([]float32, h.heads*n)
		h.d.sumRuns(dw.columns(from, to), buf[2:], segments, func(run []float32, first, end int) {
			clear(heads)
			for t := first; t < end; t++ {
				for i := range h.heads {
					lo, hi := i*h.dim+at+from, i*h.dim+at+to
					h.d.vec.AddMul(heads[i*n:][:n], h.in.loadPart(t, lo, hi, buf[0]), h.rs[t*h.heads+i],
						dy.loadPart(t, lo, hi, buf[1]))
				}
			}
			h.addHeads(run, heads)
		})
	})
}
