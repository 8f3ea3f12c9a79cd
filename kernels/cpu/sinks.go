package cpu

import (
	"lockstep/kernels"
)

// Sinks adds a logit of each head to the denominator of a finished attention (Xiao et al., arXiv 2309.17453; as in
// gpt-oss), in place, as kernels.Device states it. out [T, Heads*D], lse F32 [T, Heads] in units of log2, sinks
// [1, Heads].
func (d *Device) Sinks(out, lse, sinks kernels.Tensor) {
	heads := sinks.Cols
	mustShape("sinks", "lse", lse, out.Rows, heads)
	o, ls, dim := d.matrix(out), d.matrix(lse), out.Cols/heads
	mustShape("sinks", "out", out, out.Rows, heads*dim)
	d.eachRow(out.Rows, out.Cols, 2, func(from, to int, buf [][]float32) {
		logits := d.sinkLogits(sinks, buf[1])
		for r := from; r < to; r++ {
			y, l := o.load(r, buf[0]), ls.load(r, nil)
			for h, t := range logits {
				m := max(l[h], t)
				a := d.vec.Exp2(l[h] - m)
				sum := a + d.vec.Exp2(t-m)
				d.vec.Scale(y[h*dim:(h+1)*dim], a/sum)
				l[h] = m + float32(kernels.Ln(sum)*kernels.Log2E)
			}
			o.store(r, y)
		}
	})
}

// sinkLogits is the sinks in units of log2.
func (d *Device) sinkLogits(sinks kernels.Tensor, buf []float32) []float32 {
	m := d.matrix(sinks)
	t := buf[:sinks.Cols]
	d.vec.ScaleTo(t, m.load(0, t), kernels.Log2E)
	return t
}

// SinksBackward adds -(Exp2(min(t-lse, 0))*tree(dout*out)) to dsinks F32 [1, Heads] as a sum over rows; out and lse are
// those that Sinks wrote.
func (d *Device) SinksBackward(dsinks, dout, out, lse, sinks kernels.Tensor, segments []int32) {
	const op = "sinks backward"
	heads := sinks.Cols
	mustShape(op, "dout", dout, out.Rows, out.Cols)
	mustShape(op, "lse", lse, out.Rows, heads)
	mustSegments(op, segments, out.Rows)
	sums := d.rowSums(op, "dsinks", dsinks, heads, segments)
	o, dy, ls, dim := d.matrix(out), d.matrix(dout), d.matrix(lse), out.Cols/heads
	logits := d.sinkLogits(sinks, make([]float32, heads))
	d.pool.each(heads, 1, func(_, from, to int) {
		x, y := make([]float32, dim), make([]float32, dim)
		for h := from; h < to; h++ {
			d.sumRows(sums.columns(h, h+1), newScratch(1), segments, func(run []float32, r int) {
				p := d.vec.Exp2(min(logits[h]-ls.load(r, nil)[h], 0))
				run[0] -= float32(p * d.vec.TreeDot(dy.loadPart(r, h*dim, (h+1)*dim, x), o.loadPart(r, h*dim, (h+1)*dim,
					y)))
			})
		}
	})
}
