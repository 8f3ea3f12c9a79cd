package cpu

import (
	"fmt"

	"lockstep/kernels"
)

// joint is the shape of JoinHeads: heads of n columns of their own and r that they share.
func joint(out, own, shared kernels.Tensor) (heads, n, r int) {
	r = shared.Cols
	heads = (out.Cols - own.Cols) / max(r, 1)
	if heads <= 0 || own.Cols%heads != 0 || out.Cols != own.Cols+heads*r || own.Rows != out.Rows ||
		shared.Rows != out.Rows {
		panic(fmt.Sprintf("cpu: heads of %s and %s joined to %s", own, shared, out))
	}
	return heads, own.Cols / heads, r
}

// JoinHeads: head h of out [T, heads*(n+r)] is (own of h, shared); own [T, heads*n], shared [T, r].
func (d *Device) JoinHeads(out, own, shared kernels.Tensor) {
	heads, n, r := joint(out, own, shared)
	o, in, common := d.matrix(out), d.matrix(own), d.matrix(shared)
	d.eachRow(out.Rows, out.Cols, 2, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			x, c := in.load(t, buf[0]), common.load(t, buf[1])
			for h := range heads {
				o.storePart(t, h*(n+r), x[h*n:][:n])
				o.storePart(t, h*(n+r)+n, c)
			}
		}
	})
}

// JoinHeadsBackward: dOwn [T, heads*n] takes its columns of dout [T, heads*(n+r)]; dshared [T, r] is the rounded sum
// over heads of the others.
func (d *Device) JoinHeadsBackward(dOwn, dshared, dout kernels.Tensor) {
	heads, n, r := joint(dout, dOwn, dshared)
	o, common, in := d.matrix(dOwn), d.matrix(dshared), d.matrix(dout)
	d.eachRow(dout.Rows, dout.Cols, 2, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			x, sum := in.load(t, buf[0]), buf[1][:r]
			clear(sum)
			for h := range heads {
				o.storePart(t, h*n, x[h*(n+r):][:n])
				d.vec.Add(sum, sum, x[h*(n+r)+n:][:r])
			}
			common.storePart(t, 0, sum)
		}
	})
}
