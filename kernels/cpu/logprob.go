package cpu

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/kernels/cpu/vec"
)

// LogProb of logits F32 [T, V], in blocks of VocabBlock columns as kernels.Device states. Logits are finite.
func (d *Device) LogProb(logprob, stats, logits, targets, inv kernels.Tensor) {
	factors := checkLogProb(logprob, stats, logits, targets, inv)
	ids, lp, st := targets.I32s(), logprob.F32s(), stats.F32s()
	d.eachRow(logits.Rows, logits.Cols, 1, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			x := logits.F32s()[t*logits.Stride:][:logits.Cols]
			m, s := d.logSumExp(x, factors.of(t), buf[0])
			st[t*stats.Stride], st[t*stats.Stride+1] = m, s
			lp[t] = 0
			if ids[t] >= 0 {
				lp[t] = (float32(x[ids[t]]*factors.of(t)) - m) - kernels.Ln(s)
			}
		}
	})
}

// logSumExp is (m, s) of a row z = x*inv: the maximum, and the sum of Exp2((z-m)*log2e) by trees of vocabulary blocks,
// merged from the first to the last. buf is as long as x.
func (d *Device) logSumExp(x []float32, inv float32, buf []float32) (m, s float32) {
	size := d.def.VocabBlock
	blocks := (len(x) + size - 1) / size
	for b := range blocks {
		block := x[b*size : min((b+1)*size, len(x))]
		e := buf[:len(block)]
		mb := float32(d.vec.Max(block) * inv) // rounding keeps the order
		d.vec.ScaleTo(e, block, inv)
		d.vec.Exp2Sub(e, e, kernels.Log2E, mb)
		sb := d.vec.Tree(e)
		if b == 0 {
			m, s = mb, sb
			continue
		}
		to := max(m, mb)
		s = float32(s*d.vec.Exp2(float32((m-to)*kernels.Log2E))) +
			float32(sb*d.vec.Exp2(float32((mb-to)*kernels.Log2E)))
		m = to
	}
	return m, s
}

// LogProbBackward writes dlogits F32 or BF16 [T, V]; dlogits may be logits.
func (d *Device) LogProbBackward(dlogits, dlogprob, stats, logits, targets, inv kernels.Tensor) {
	factors := checkLogProb(dlogprob, stats, logits, targets, inv)
	if dlogits.Rows != logits.Rows || dlogits.Cols != logits.Cols {
		panic(fmt.Sprintf("cpu: gradient %s of logits %s", dlogits, logits))
	}
	ids, g, st := targets.I32s(), dlogprob.F32s(), stats.F32s()
	x, dx := d.matrix(logits), d.matrix(dlogits)
	d.eachRow(logits.Rows, logits.Cols, 1, func(from, to int, buf [][]float32) {
		for t := from; t < to; t++ {
			row := dx.target(t, buf[0])
			if ids[t] < 0 {
				clear(row)
			} else {
				f := factors.of(t)
				softmaxGrad(d.vec, row, x.load(t, nil), int(ids[t]), f, float32(g[t]*f), st[t*stats.Stride],
					1/st[t*stats.Stride+1])
			}
			dx.store(t, row)
		}
	})
}

// softmaxGrad is dx_j = g*([j = target] - Exp2((x_j*inv-m)*log2e)*r) for one row, in pieces that stay in the first
// cache. dx may be x.
func softmaxGrad(ops *vec.Ops, dx, x []float32, target int, inv, g, m, r float32) {
	const piece = 2048
	own := g * (1 - float32(ops.Exp2(min(float32((float32(x[target]*inv)-m)*kernels.Log2E), 0))*r))
	for from := 0; from < len(x); from += piece {
		to := min(from+piece, len(x))
		e := dx[from:to]
		ops.ScaleTo(e, x[from:to], inv)
		ops.Exp2Sub(e, e, kernels.Log2E, m)
		for j, p := range e {
			e[j] = g * (0 - float32(p*r)) // the sign of a zero is part of the definition, so not (-g)*p
		}
	}
	dx[target] = own
}

// rowFactors are the inverse temperatures of rows; nil: 1.
type rowFactors []float32

func (f rowFactors) of(t int) float32 {
	if f == nil {
		return 1
	}
	return f[t]
}

func checkLogProb(logprob, stats, logits, targets, inv kernels.Tensor) rowFactors {
	t := logits.Rows
	if logprob.Len() != t || targets.Len() != t || stats.Rows != t || stats.Cols != 2 || logits.Cols == 0 {
		panic(fmt.Sprintf("cpu: log-probabilities %s, stats %s and targets %s of logits %s", logprob, stats, targets,
			logits))
	}
	if inv.IsNil() {
		return nil
	}
	if inv.Len() != t {
		panic(fmt.Sprintf("cpu: inverse temperatures %s of logits %s", inv, logits))
	}
	return inv.F32s()
}
