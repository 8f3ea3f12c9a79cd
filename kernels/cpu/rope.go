package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// headRope is one HeadNormRope or its gradient: heads of D elements in x [T, heads*D], one rotation for each row.
type headRope struct {
	d         *Device
	in        matrix
	heads     int
	dim       int // D
	rs        []float32
	positions []int32
	cos, sin  matrix // [positions, D/2]
	weight    matrix // [1, D]; unused where normed is false
	normed    bool
}

func (d *Device) headRope(op string, x, rstd, w, positions kernels.Tensor, rope kernels.Rope) headRope {
	half := rope.Cos.Cols
	if half == 0 || x.Cols%(2*half) != 0 {
		panic(fmt.Sprintf("cpu: %s: heads of %s with tables of %s", op, x, rope.Cos))
	}
	mustShape(op, "sin", rope.Sin, rope.Cos.Rows, half)
	h := headRope{d: d, in: d.matrix(x), dim: 2 * half, heads: x.Cols / (2 * half), cos: d.matrix(rope.Cos), sin: d.matrix(rope.Sin)}
	h.positions = indices(op, "positions", positions, x.Rows)
	mustIndex(op, h.positions, rope.Cos.Rows)
	if !w.IsNil() {
		mustShape(op, "w", w, 1, h.dim)
		h.normed, h.weight, h.rs = true, d.matrix(w), vector(op, "rstd", rstd, x.Rows*h.heads)
	}
	return h
}

// tables are cos and sin of row t.
func (h *headRope) tables(t int) (cos, sin []float32) {
	p := int(h.positions[t])
	return h.cos.load(p, nil), h.sin.load(p, nil)
}

// HeadNormRope normalises each head of x as RMSNorm does (z = (x*rstd)*w; w nil: z = x) and rotates it (Su et al., arXiv 2104.09864):
// out[i] = round(z[i]*c - z[i+D/2]*s), out[i+D/2] = round(z[i+D/2]*c + z[i]*s). x, out [T, heads*D]; rstd F32 [T, heads]; positions int32 [T].
func (d *Device) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, eps float32) {
	const op = "head norm and rope"
	mustShape(op, "out", out, x.Rows, x.Cols)
	h, o := d.headRope(op, x, rstd, w, positions, rope), d.matrix(out)
	d.eachRow(x.Rows, x.Cols, 2, func(from, to int, buf [][]float32) {
		var ws []float32
		if h.normed {
			ws = h.weight.load(0, buf[1])
		}
		for t := from; t < to; t++ {
			cos, sin := h.tables(t)
			xs, ys := h.in.load(t, buf[0]), o.target(t, buf[0])
			for i := range h.heads {
				lo, hi := i*h.dim, (i+1)*h.dim
				if !h.normed {
					d.vec.Rotate(ys[lo:hi], xs[lo:hi], cos, sin)
					continue
				}
				r := rStd(d.vec.TreeDot(xs[lo:hi], xs[lo:hi]), h.dim, eps)
				h.rs[t*h.heads+i] = r
				d.vec.NormRotate(ys[lo:hi], xs[lo:hi], r, ws, cos, sin)
			}
			o.store(t, ys)
		}
	})
}

// HeadNormRopeBackward writes dx = round(.) of the gradient through rotation and norm, and adds dz*xh to dw F32 [1, D] as a sum over rows, heads
// ascending inside a row. dw may be nil; with w nil there is no norm. dx may be dout.
func (d *Device) HeadNormRopeBackward(dx, dw, dout, x, rstd, w, positions kernels.Tensor, rope kernels.Rope, packs []int32) {
	const op = "head norm and rope backward"
	mustShape(op, "dx", dx, x.Rows, x.Cols)
	mustShape(op, "dout", dout, x.Rows, x.Cols)
	h, grad, dy := d.headRope(op, x, rstd, w, positions, rope), d.matrix(dx), d.matrix(dout)
	if !dw.IsNil() { // before dx, which may be dout
		if !h.normed {
			panic("cpu: " + op + ": gradient of a weight that is nil")
		}
		h.weightGrad(vector(op, "dw", dw, h.dim), &dy, rowBlocks(op, packs, x.Rows))
	}
	d.eachRow(x.Rows, x.Cols, 3, func(from, to int, buf [][]float32) {
		var ws []float32
		if h.normed {
			ws = h.weight.load(0, buf[2])
		}
		for t := from; t < to; t++ {
			cos, sin := h.tables(t)
			ds, zs, xs := dy.load(t, buf[0]), grad.target(t, buf[0]), h.in.load(t, buf[1])
			for i := range h.heads {
				lo, hi := i*h.dim, (i+1)*h.dim
				if !h.normed {
					d.vec.Unrotate(zs[lo:hi], ds[lo:hi], cos, sin)
					continue
				}
				r := h.rs[t*h.heads+i]
				g, x := zs[lo:hi], xs[lo:hi]
				d.vec.UnrotateMul(g, ds[lo:hi], ws, cos, sin)
				d.vec.NormGrad(g, g, x, r, d.vec.TreeScaled(g, x, r)/float32(h.dim))
			}
			grad.store(t, zs)
		}
	})
}

// weightGrad adds dz*xh of every head to dw. Threads share the columns, pair by pair, since a rotation mixes two.
func (h *headRope) weightGrad(dw []float32, dy *matrix, blocks []int32) {
	half := h.dim / 2
	h.d.eachColumn(half, 6, func(from, to int, buf [][]float32) {
		low, high := buf[4], buf[5]
		for b, first := range blocks[:len(blocks)-1] {
			clear(low)
			clear(high)
			for t := int(first); t < int(blocks[b+1]); t++ {
				h.addRow(low, high, dy, t, from, to, buf)
			}
			h.d.vec.Add(dw[from:to], dw[from:to], low)
			h.d.vec.Add(dw[half+from:half+to], dw[half+from:half+to], high)
		}
	})
}

// addRow adds dz*xh of pairs [from, to) of every head of row t.
func (h *headRope) addRow(low, high []float32, dy *matrix, t, from, to int, buf [][]float32) {
	cos, sin := h.tables(t)
	half, n := h.dim/2, to-from
	for i := range h.heads {
		lo := i*h.dim + from
		hi := lo + half
		h.d.vec.UnrotateAddMul(low, high,
			dy.loadPart(t, lo, lo+n, buf[0]), dy.loadPart(t, hi, hi+n, buf[1]),
			h.in.loadPart(t, lo, lo+n, buf[2]), h.in.loadPart(t, hi, hi+n, buf[3]),
			cos[from:to], sin[from:to], h.rs[t*h.heads+i])
	}
}
