package optim

// DAPO is the loss of decoupled clip and dynamic sampling policy optimization (Yu et al., arXiv 2503.14476, equation
// 8): the clipped surrogate with a higher upper bound,
//
//	L = max(-r*A, -clip(r, 1 - 0.2, 1 + 0.28)*A)
//
// so that unlikely tokens can grow, a mean over all targets of the step, and no divergence. The sampler
// drops groups whose answers are all right or all wrong.
type DAPO struct{ policy }

var dapoDefaults = Settings{ClipLow: 0.2, ClipHigh: 0.28, Aggregate: "token", Advantage: "group_norm"}

func newDAPO(s Settings) Objective { return DAPO{newPolicy(s, newSurrogate(s))} }
