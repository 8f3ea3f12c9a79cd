package optim

// CISPO clips the importance weight and keeps every row's gradient (MiniMax-M1, arXiv 2506.13585, equation 4):
//
//	L = -w * stop(clip(r, low, high)) * A * lp
//
// The derivative by lp is -w*clip(r, low, high)*A. There are as many bounds as projects: [0, 4] is ours and Tinker's,
// verl has 1 -+ epsilon, TRL an upper bound alone. Rows whose weight a bound limited count as clipped.
type CISPO struct{ policy }

var cispoDefaults = Settings{ClipLow: 1, ClipHigh: 3, Aggregate: "token", Advantage: "group_norm"}

func newCISPO(s Settings) Objective {
	low, high := s.bounds()
	return CISPO{newPolicy(s, clippedWeight{low, high})}
}

// clippedWeight is the term of CISPO.
type clippedWeight struct{ low, high float32 }

func (c clippedWeight) slope(x point) (d float32, clipped bool) {
	r := min(max(x.ratio, c.low), c.high)
	return -float32(x.weight * float32(r*x.advantage)), x.advantage != 0 && (x.capped || r != x.ratio)
}

func (c clippedWeight) value(x point) float64 {
	d, _ := c.slope(x)
	return float64(float64(d) * float64(x.logprob))
}
