package vec

import "lockstep/kernels"

// Widen converts bf16 to fp32, exactly.
func (o *Ops) Widen(dst []float32, src []uint16) { o.widen(dst[:len(src)], src) }

func widenGo(dst []float32, src []uint16) {
	for i, v := range src {
		dst[i] = kernels.FromBF16(v)
	}
}

// Narrow converts fp32 to bf16 as kernels.RoundBF16 does.
func (o *Ops) Narrow(dst []uint16, src []float32) { o.narrow(dst[:len(src)], src) }

func narrowGo(dst []uint16, src []float32) {
	for i, v := range src {
		dst[i] = kernels.RoundBF16(v)
	}
}
