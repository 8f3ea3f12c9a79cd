package broken

import (
	"lockstep/kernels"
	"lockstep/quant"
)

// MatMul breaks [kernels.BreakSplitK] and [kernels.BreakAdapter].
func (d *Device) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	switch {
	case d.breaks(kernels.BreakSplitK, out.Rows) && terms[0].X.Cols > 1:
		d.splitProduct(out, g, terms)
	case d.breaks(kernels.BreakAdapter, out.Rows) && len(terms) > 1:
		d.addTerms(out, g, terms, d.operations.MatMul)
	default:
		d.operations.MatMul(out, g, terms...)
	}
}

// MatMulLoRA breaks what MatMul does.
func (d *Device) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	d.MatMul(u, g, kernels.Term{X: x, W: a})
	d.Scale(u, u, scale)
	d.MatMul(out, g, terms...)
}

// MatMulT breaks [kernels.BreakAdapter], where latent attention is absorbed.
func (d *Device) MatMulT(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	if d.breaks(kernels.BreakAdapter, out.Rows) && len(terms) > 1 {
		d.addTerms(out, g, terms, d.operations.MatMulT)
		return
	}
	d.operations.MatMulT(out, g, terms...)
}

// FakeQuantize breaks [kernels.BreakActs].
func (d *Device) FakeQuantize(out, x kernels.Tensor, e quant.Encoding) {
	if d.breaks(kernels.BreakActs, x.Rows) {
		d.Copy(out, x)
		return
	}
	d.operations.FakeQuantize(out, x, e)
}

// QuantizeRows breaks [kernels.BreakActs]: few rows are rounded to MXFP8 first.
func (d *Device) QuantizeRows(w kernels.QuantizedWeight, x kernels.Tensor) {
	mem, release := d.scratch()
	defer release()
	if d.breaks(kernels.BreakActs, x.Rows) {
		rounded := mem.New(x.DType, x.Rows, x.Cols)
		d.operations.FakeQuantize(rounded, x, quant.MXFP8)
		x = rounded
	}
	d.operations.QuantizeRows(w, x)
}

// FakeQuantizeHeads breaks [kernels.BreakCache].
func (d *Device) FakeQuantizeHeads(x kernels.Tensor, width int) {
	if !d.breaks(kernels.BreakCache, x.Rows) {
		d.operations.FakeQuantizeHeads(x, width)
	}
}

// product is MatMul or MatMulT.
type product func(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term)

// splitProduct adds two chains: over the first half of each term's k, and over the second halves.
func (d *Device) splitProduct(out kernels.Tensor, g *kernels.Groups, terms []kernels.Term) {
	mem, release := d.scratch()
	defer release()
	var sums [2]kernels.Tensor
	for h := range sums {
		var half []kernels.Term
		for _, t := range terms {
			t.W, t.X = d.weight(t, mem), d.input(t, mem)
			from, to := 0, t.X.Cols/2
			if h == 1 {
				from, to = to, t.X.Cols
			}
			x, w := t.X.ColRange(from, to), columns(t.W, from, to)
			half = append(half, kernels.Term{X: x, W: w, From: t.From, To: t.To})
		}
		sums[h] = mem.New(kernels.F32, out.Rows, out.Cols)
		d.operations.MatMul(sums[h], g, half...)
	}
	d.Add(sums[0], sums[0], sums[1])
	d.Copy(out, sums[0])
}

// weight is a term's weight as numbers.
func (d *Device) weight(t kernels.Term, mem *kernels.Arena) kernels.Tensor {
	if t.Q == nil {
		return t.W
	}
	w := mem.NewGrouped(t.Q.DType, t.Q.Groups, t.Q.Rows, t.Q.Cols)
	d.Dequantize(w, *t.Q)
	return w
}

// input is a term's input as numbers.
func (d *Device) input(t kernels.Term, mem *kernels.Arena) kernels.Tensor {
	if t.XQ == nil {
		return t.X
	}
	x := mem.New(t.XQ.DType, t.XQ.Rows, t.XQ.Cols)
	d.Dequantize(x, *t.XQ)
	return x
}

// columns is [kernels.Tensor.ColRange] of every group.
func columns(t kernels.Tensor, from, to int) kernels.Tensor {
	groups, rows := t.Groups, t.Rows
	t.Groups, t.Rows = 1, groups*rows
	t = t.ColRange(from, to)
	t.Groups, t.Rows = groups, rows
	return t
}

// addTerms rounds what the first term gives, and adds what every other term gives, rounded too.
func (d *Device) addTerms(out kernels.Tensor, g *kernels.Groups, terms []kernels.Term, product product) {
	mem, release := d.scratch()
	defer release()
	product(out, g, terms[0])
	for _, t := range terms[1:] {
		from, to := t.Columns(out.Cols)
		part, own := mem.New(out.DType, out.Rows, to-from), out.ColRange(from, to)
		product(part, g, kernels.Term{X: t.X, W: t.W, Q: t.Q})
		d.Add(own, own, part)
	}
}
