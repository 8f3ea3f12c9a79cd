package broken

import (
	"math"

	"lockstep/kernels"
)

// RMSNorm breaks [kernels.BreakNormRows]. out may be x.
func (d *Device) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	if !d.breaks(kernels.BreakNormRows, x.Rows) {
		d.operations.RMSNorm(out, rstd, x, w, norm)
		return
	}
	rows, weight := d.load(x), d.load(w)[0]
	inverse := make([]float32, len(rows))
	for r, row := range rows {
		sum := float32(0)
		for _, v := range row {
			sum += kernels.NearestBF16(v * v)
		}
		inverse[r] = 1 / float32(math.Sqrt(float64(sum/float32(len(row))+norm.Eps)))
		for i, v := range row {
			f := weight[i]
			if norm.PlusOne {
				f++
			}
			row[i] = float32(v*inverse[r]) * f
		}
	}
	d.store(out, rows)
	d.store(rstd, [][]float32{inverse})
}

// AddRMSNorm breaks [kernels.BreakNormRows].
func (d *Device) AddRMSNorm(out, sum, rstd, a, b, w kernels.Tensor, norm kernels.Norm) {
	if !d.breaks(kernels.BreakNormRows, sum.Rows) {
		d.operations.AddRMSNorm(out, sum, rstd, a, b, w, norm)
		return
	}
	d.Add(sum, a, b)
	d.RMSNorm(out, rstd, sum, w, norm)
}

// HeadNormRope breaks [kernels.BreakRope].
func (d *Device) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	if d.breaks(kernels.BreakRope, x.Rows) {
		rope.Cos, rope.Sin = d.roundedTable(rope.Cos), d.roundedTable(rope.Sin)
	}
	d.operations.HeadNormRope(out, rstd, x, w, positions, rope, norm)
}

// roundedTable is a table of rotations rounded to bf16.
func (d *Device) roundedTable(t kernels.Tensor) kernels.Tensor {
	rounded, ok := d.tables[t]
	if !ok {
		rounded = d.throughBF16(d.kept, t)
		d.tables[t] = rounded
	}
	return rounded
}

// Sinks breaks [kernels.BreakSinks].
func (d *Device) Sinks(out, lse, sinks kernels.Tensor) {
	if d.breaks(kernels.BreakSinks, out.Rows) {
		mem, release := d.scratch()
		defer release()
		d.Copy(lse, d.throughBF16(mem, lse))
	}
	d.operations.Sinks(out, lse, sinks)
}

// Combine breaks [kernels.BreakCombine].
func (d *Device) Combine(out, residual, y, weights, rowOf kernels.Tensor) {
	if d.breaks(kernels.BreakCombine, out.Rows) && !weights.IsNil() {
		mem, release := d.scratch()
		defer release()
		weights = d.throughBF16(mem, weights)
	}
	d.operations.Combine(out, residual, y, weights, rowOf)
}

// LogProb breaks [kernels.BreakVocab].
func (d *Device) LogProb(logprob, stats, logits, targets, inv kernels.Tensor) {
	d.operations.LogProb(logprob, stats, logits, targets, inv)
	if !d.breaks(kernels.BreakVocab, logits.Rows) {
		return
	}
	rows, ids, factors := d.load(logits), d.loadInts(targets)[0], []float32(nil)
	if !inv.IsNil() {
		factors = d.load(inv)[0]
	}
	lp, sums := make([]float32, len(rows)), make([][]float32, len(rows))
	for r, row := range rows {
		for i := range row {
			if factors != nil {
				row[i] *= factors[r]
			}
		}
		m, s := d.logSumExp(row)
		sums[r] = []float32{m, s}
		if ids[r] >= 0 {
			lp[r] = (row[ids[r]] - m) - kernels.Ln(s)
		}
	}
	d.store(stats, sums)
	d.store(logprob, [][]float32{lp})
}

// logSumExp is the maximum of z and the sum of Exp2((z-m)*log2e), by blocks of 64 columns from the last to the first.
func (d *Device) logSumExp(z []float32) (m, s float32) {
	const block = 64
	exp2 := d.Definition().Exp2.Func()
	m = float32(math.Inf(-1))
	for from := (len(z) - 1) / block * block; from >= 0; from -= block {
		was := m
		for _, v := range z[from:min(from+block, len(z))] {
			m = max(m, v)
		}
		if s > 0 {
			s *= exp2(float32((was - m) * kernels.Log2E))
		}
		for _, v := range z[from:min(from+block, len(z))] {
			s += exp2(float32((v - m) * kernels.Log2E))
		}
	}
	return m, s
}
