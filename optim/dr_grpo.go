package optim

// DrGRPO is "GRPO done right" (Liu et al., "Understanding R1-Zero-like training", arXiv 2503.20783): GRPO without its
// two biases. The advantage is reward - mean, not divided by the group's std, and a row's share is 1 / (answers * most
// tokens of an answer), so that a long wrong answer is not punished less for each token.
type DrGRPO struct{ policy }

var drGRPODefaults = Settings{ClipLow: 0.2, ClipHigh: 0.2, Aggregate: "constant", Advantage: "group_mean"}

func newDrGRPO(s Settings) Objective { return DrGRPO{newPolicy(s, newSurrogate(s))} }
