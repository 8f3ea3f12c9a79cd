package optim

// surrogate is the clipped objective of PPO (Schulman et al., arXiv 1707.06347, equation 7) as a loss, with r the ratio
// and A the advantage:
//
//	L = w * max(-r*A, -clip(r, low, high)*A), and at most w * -dual*A where A < 0
//
// The bound by dual is that of dual-clip PPO (Ye et al., arXiv 1912.09729, equation 5). The derivative by lp is -w*r*A,
// and 0 where r is beyond the bound that its advantage pushes it towards: above high for A > 0, below low for A < 0,
// above dual for A < 0.
type surrogate struct {
	low, high float32
	dual      float32 // 0: off
}

func newSurrogate(s Settings) surrogate {
	low, high := s.bounds()
	return surrogate{low: low, high: high, dual: float32(s.DualClip)}
}

// bounds are those of ratios.
func (s Settings) bounds() (low, high float32) {
	if s.ClipBounds == "absolute" {
		return float32(s.ClipLow), float32(s.ClipHigh)
	}
	return float32(1 - s.ClipLow), float32(1 + s.ClipHigh)
}

func (c surrogate) slope(x point) (d float32, clipped bool) {
	r, a := x.ratio, x.advantage
	if x.capped && a != 0 || a > 0 && r > c.high || a < 0 && (r < c.low || c.dual > 0 && r > c.dual) {
		return 0, true
	}
	return -float32(x.weight * float32(r*a)), false
}

func (c surrogate) value(x point) float64 {
	a := float64(x.advantage)
	v := max(-float64(float64(x.ratio)*a), -float64(float64(min(max(x.ratio, c.low), c.high))*a))
	if c.dual > 0 && a < 0 {
		v = min(v, -float64(float64(c.dual)*a))
	}
	return float64(float64(x.weight) * v)
}
