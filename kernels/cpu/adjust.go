package cpu

import (
	"fmt"
	"math"

	"lockstep/kernels"
)

// AdjustLogits changes the rows of logits F32 [n, V] as kernels.Device states.
func (d *Device) AdjustLogits(logits kernels.Tensor, rows []kernels.Adjustment) {
	if logits.Rows != len(rows) || logits.Cols == 0 {
		panic(fmt.Sprintf("cpu: %d adjustments of logits %s", len(rows), logits))
	}
	d.pool.each(len(rows), 1, func(_, from, to int) {
		s := samplers.Get().(*sampler)
		defer samplers.Put(s)
		for r := from; r < to; r++ {
			s.logits, s.vec, s.block = logits.F32s()[r*logits.Stride:][:logits.Cols], d.vec, d.def.VocabBlock
			s.adjust(rows[r])
		}
	})
}

func (s *sampler) adjust(a kernels.Adjustment) {
	for _, l := range a.Logits {
		x := s.logits[l.ID]
		if x != x {
			continue
		}
		x += l.Bias
		if x > 0 {
			x /= l.Repetition
		} else {
			x = float32(x * l.Repetition)
		}
		s.logits[l.ID] = x - l.Penalty
	}
	if a.MinP == 0 || a.Temperature == 0 {
		return
	}
	best, inv := s.first(), kernels.Inverse(a.Temperature)
	if best < 0 {
		return
	}
	m := float32(s.logits[best] * inv)
	if math.IsInf(float64(m), 0) || m != m {
		return
	}
	s.weigh(inv, m)
	for j, e := range s.e {
		if e < a.MinP {
			s.logits[j] = float32(math.Inf(-1))
		}
	}
}
