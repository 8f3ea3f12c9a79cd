package optim

// GSPO is group sequence policy optimization (Zheng et al., arXiv 2507.18071): the clipped surrogate with one ratio for
// an answer, the geometric mean over its targets,
//
//	s = e^(mean of lp - old),  L = max(-s*A, -clip(s, 1 - 3e-4, 1 + 4e-4)*A)
//
// on every row, and each answer's mean over its targets. gspo_gradient says where the gradient goes:
//
//	token a row's derivative is that of its own L, -s*A (GSPO-token, equation 13, and what verl does: s is a constant
//	times e^(lp - stop(lp)))
//	mean through the mean: each row gets the mean over the answer of weight * -s*A (equation 9; TRL, slime, OpenRLHF)
//
// Both are the same numbers where the rows of an answer have one advantage, one weight and one importance weight.
type GSPO struct{ policy }

var gspoDefaults = Settings{ClipLow: 3e-4, ClipHigh: 4e-4, Aggregate: "sequence", Advantage: "group_norm",
	GSPOGradient: "token"}

func newGSPO(s Settings) Objective {
	p := newPolicy(s, newSurrogate(s))
	p.sequence, p.throughAll = true, s.GSPOGradient == "mean"
	return GSPO{p}
}
