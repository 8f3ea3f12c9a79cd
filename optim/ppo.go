package optim

// PPO is the clipped surrogate, a mean over all targets of the step (Schulman et al., arXiv 1707.06347):
//
//	L = max(-r*A, -clip(r, 1 - 0.2, 1 + 0.2)*A)
//
// There is no value network here: advantages come from groups of answers.
type PPO struct{ policy }

var ppoDefaults = Settings{ClipLow: 0.2, ClipHigh: 0.2, Aggregate: "token", Advantage: "group_norm"}

func newPPO(s Settings) Objective { return PPO{newPolicy(s, newSurrogate(s))} }
