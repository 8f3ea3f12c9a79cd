package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// NormThenGate is as kernels.DeltaNet states it.
func (d *Device) NormThenGate(out, rstd, x, z, w kernels.Tensor, eps float32) {
	const op = "norm then gate"
	n := w.Cols
	heads := headsOf(op, x, n)
	mustShape(op, "out", out, x.Rows, x.Cols)
	mustShape(op, "z", z, x.Rows, x.Cols)
	mustShape(op, "rstd", rstd, x.Rows, heads)
	to, in, gate, ws, rs := d.matrix(out), d.matrix(x), d.matrix(z), vector(op, "w", w, n), rstd.F32s()
	d.eachRow(x.Rows, x.Cols, 3, func(from, end int, buf [][]float32) {
		for r := from; r < end; r++ {
			v, y := in.load(r, buf[0]), buf[1]
			for h := range heads {
				part := v[h*n : (h+1)*n]
				rs[r*rstd.Stride+h] = rStd(d.vec.TreeDot(part, part), n, eps)
				d.vec.NormScale(y[h*n:(h+1)*n], part, rs[r*rstd.Stride+h], ws)
			}
			d.vec.SwiGLU(y, gate.load(r, buf[2]), y) // (z*sigm(z))*y
			to.storePart(r, 0, y)
		}
	})
}

// NormThenGateBackward is as kernels.DeltaNet states it.
func (d *Device) NormThenGateBackward(dx, dz, dw, dout, x, z, rstd, w kernels.Tensor, segments []int32) {
	const op = "norm then gate backward"
	n := w.Cols
	heads := headsOf(op, x, n)
	for name, t := range map[string]kernels.Tensor{"dx": dx, "dz": dz, "dout": dout, "z": z} {
		mustShape(op, name, t, x.Rows, x.Cols)
	}
	g := normGate{d: d, x: d.matrix(x), z: d.matrix(z), dout: d.matrix(dout), dx: d.matrix(dx), dz: d.matrix(dz),
		w: vector(op, "w", w, n), rstd: rstd, heads: heads, n: n}
	if dw.IsNil() {
		segments = []int32{0, int32(x.Rows)}
	}
	mustSegments(op, segments, x.Rows)
	blocks, starts := kernels.RowBlocks(segments)
	runs, runsOf := kernels.RowRuns(blocks)
	shares := make([]float32, (len(runs)-1)*n) // the part of dw of each run
	d.pool.each(len(runs)-1, 1, func(_, from, to int) {
		s := rowScratches.Get().(*rowScratch)
		defer rowScratches.Put(s)
		buf := s.take(7, x.Cols)
		for run := from; run < to; run++ {
			chains := buf[6]
			clear(chains)
			for r := int(runs[run]); r < int(runs[run+1]); r++ {
				g.backward(r, buf, chains)
			}
			for h := range heads {
				d.vec.Add(shares[run*n:][:n], shares[run*n:][:n], chains[h*n:(h+1)*n])
			}
		}
	})
	if dw.IsNil() {
		return
	}
	sums, segment, block := d.rowSums(op, "dw", dw, n, segments), make([]float32, n), make([]float32, n)
	for s, first := range starts[:len(starts)-1] {
		clear(segment)
		for b := first; b < starts[s+1]; b++ {
			clear(block)
			for run := int(runsOf[b]); run < int(runsOf[b+1]); run++ {
				d.vec.Add(block, block, shares[run*n:][:n])
			}
			d.vec.Add(segment, segment, block)
		}
		d.vec.Add(sums.of(s), sums.of(s), segment)
	}
}

// normGate is one NormThenGateBackward.
type normGate struct {
	d                  *Device
	x, z, dout, dx, dz matrix
	w                  []float32
	rstd               kernels.Tensor
	heads, n           int
}

// backward is row r; it adds its part of dw to chains [heads, n].
func (g *normGate) backward(r int, buf [][]float32, chains []float32) {
	vec, n, rs := g.d.vec, g.n, g.rstd.F32s()[r*g.rstd.Stride:]
	v, y, dy := g.x.load(r, buf[0]), buf[1], buf[2]
	for h := range g.heads {
		vec.NormScale(y[h*n:(h+1)*n], v[h*n:(h+1)*n], rs[h], g.w)
	}
	vec.SwiGLUGrad(buf[3], dy, g.dout.load(r, buf[4]), g.z.load(r, buf[5]), y)
	g.dz.storePart(r, 0, buf[3])
	for h := range g.heads {
		d, v := dy[h*n:(h+1)*n], v[h*n:(h+1)*n]
		vec.AddMul(chains[h*n:(h+1)*n], v, rs[h], d)
		vec.Mul(d, d, g.w)
		vec.NormGrad(d, d, v, rs[h], vec.TreeScaled(d, v, rs[h])/float32(n))
	}
	g.dx.storePart(r, 0, dy)
}

func headsOf(op string, x kernels.Tensor, n int) int {
	if n == 0 || x.Cols%n != 0 {
		panic(fmt.Sprintf("cpu: %s: %s in heads of %d columns", op, x, n))
	}
	return x.Cols / n
}

// GateThenNorm is as kernels.Mamba states it.
func (d *Device) GateThenNorm(out, rstd, x, z, w kernels.Tensor, groups int, eps float32) {
	const op = "gate then norm"
	n := x.Cols / groups
	mustShape(op, "out", out, x.Rows, groups*n)
	mustShape(op, "z", z, x.Rows, groups*n)
	mustShape(op, "w", w, 1, groups*n)
	mustShape(op, "rstd", rstd, x.Rows, groups)
	to, in, gate, weight, rs := d.matrix(out), d.matrix(x), d.matrix(z), d.matrix(w), rstd.F32s()
	d.eachRow(x.Rows, x.Cols, 4, func(from, end int, buf [][]float32) {
		ws := weight.load(0, buf[3])
		for r := from; r < end; r++ {
			y := buf[1]
			d.vec.SwiGLU(y, gate.load(r, buf[2]), in.load(r, buf[0]))
			for g := range groups {
				part := y[g*n : (g+1)*n]
				rs[r*rstd.Stride+g] = rStd(d.vec.TreeDot(part, part), n, eps)
				d.vec.NormScale(part, part, rs[r*rstd.Stride+g], ws[g*n:])
			}
			to.storePart(r, 0, y)
		}
	})
}

// GateThenNormBackward is as kernels.Mamba states it.
func (d *Device) GateThenNormBackward(dx, dz, dw, dout, x, z, rstd, w kernels.Tensor, groups int, segments []int32) {
	const op = "gate then norm backward"
	n := x.Cols / groups
	for name, t := range map[string]kernels.Tensor{"dx": dx, "dz": dz, "dout": dout, "z": z} {
		mustShape(op, name, t, x.Rows, groups*n)
	}
	gx, gz, dy, in, gate, weight, rs := d.matrix(dx), d.matrix(dz), d.matrix(dout), d.matrix(x), d.matrix(z),
		d.matrix(w), rstd.F32s()
	d.eachRow(x.Rows, x.Cols, 7, func(from, to int, buf [][]float32) {
		ws := weight.load(0, buf[6])
		for r := from; r < to; r++ {
			v, zs, do, y, g := in.load(r, buf[0]), gate.load(r, buf[1]), dy.load(r, buf[2]), buf[3], buf[4]
			d.vec.SwiGLU(y, zs, v)
			d.vec.Mul(g, do, ws)
			for i := range groups {
				g, y, a := g[i*n:(i+1)*n], y[i*n:(i+1)*n], rs[r*rstd.Stride+i]
				d.vec.NormGrad(g, g, y, a, d.vec.TreeScaled(g, y, a)/float32(n))
			}
			d.vec.SwiGLUGrad(buf[5], y, g, zs, v)
			gz.storePart(r, 0, buf[5])
			gx.storePart(r, 0, y)
		}
	})
	if dw.IsNil() {
		return
	}
	mustSegments(op, segments, x.Rows)
	sums := d.rowSums(op, "dw", dw, x.Cols, segments)
	d.eachColumn(x.Cols, 3+sumScratch, func(from, to int, buf [][]float32) {
		y := buf[0]
		d.sumRows(sums.columns(from, to), buf[3:], segments, func(run []float32, r int) {
			d.vec.SwiGLU(y, gate.loadPart(r, from, to, y), in.loadPart(r, from, to, buf[1]))
			do := dy.loadPart(r, from, to, buf[2])
			for at := from; at < to; { // a group's columns share its rstd
				g := at / n
				end := min(to, (g+1)*n)
				d.vec.AddMul(run[at-from:end-from], y[at-from:end-from], rs[r*rstd.Stride+g], do[at-from:end-from])
				at = end
			}
		})
	})
}
