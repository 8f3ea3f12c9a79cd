package vec

import (
	"math"

	"lockstep/kernels"
)

// adamW are the factors of one step, each rounded once from the settings.
type adamW struct {
	gradScale, beta1, rest1, beta2, rest2 float32
	decay, lr, eps, corr1, corr2          float32
}

// AdamW is one step of kernels.Device.AdamW: master, m and v are updated and grad is cleared.
func (o *Ops) AdamW(master, m, v, grad []float32, gradScale float32, s kernels.AdamW) {
	n := len(master)
	o.adamW(master, m[:n], v[:n], grad[:n], &adamW{
		gradScale: gradScale,
		beta1:     s.Beta1, rest1: 1 - s.Beta1,
		beta2: s.Beta2, rest2: 1 - s.Beta2,
		decay: s.LR * s.WeightDecay, lr: s.LR, eps: s.Eps,
		corr1: s.Correction1, corr2: s.Correction2,
	})
}

func adamWGo(master, m, v, grad []float32, s *adamW) {
	for i, w := range master {
		g := float32(grad[i] * s.gradScale)
		m1 := float32(s.beta1*m[i]) + float32(s.rest1*g)
		v1 := float32(s.beta2*v[i]) + float32(float32(s.rest2*g)*g)
		w -= float32(s.decay * w)
		step := (m1 / s.corr1) / (float32(math.Sqrt(float64(v1/s.corr2))) + s.eps)
		m[i], v[i], grad[i] = m1, v1, 0
		master[i] = w - float32(s.lr*step)
	}
}
