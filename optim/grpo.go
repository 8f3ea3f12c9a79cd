package optim

// GRPO is group relative policy optimization (Shao et al., "DeepSeekMath", arXiv 2402.03300, equation 3): PPO's clipped
// surrogate with advantages from the answers to one prompt, (reward - mean) / std, each answer's mean over its targets
// first and then the mean over answers, and optionally a divergence from a reference:
//
//	L = max(-r*A, -clip(r, 1 - 0.2, 1 + 0.2)*A) + kl_coef * (e^(ref - lp) - 1 - (ref - lp))
//
// kl_coef is 0.04 in the paper, and 0 by default here as in most trainers of today: without it no reference is needed.
type GRPO struct{ policy }

var grpoDefaults = Settings{ClipLow: 0.2, ClipHigh: 0.2, Aggregate: "sequence", Advantage: "group_norm"}

func newGRPO(s Settings) Objective { return GRPO{newPolicy(s, newSurrogate(s))} }
