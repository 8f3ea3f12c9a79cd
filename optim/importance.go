package optim

// importance weighs the rows of a policy loss by how much likelier the trainer's old policy finds them than the engine
// that sampled them, w = e^(old - rollout):
//
//	cap w = min(w, cap): truncated importance sampling (Ionides 2008; Yao et al. 2025, "Your efficient RL framework
//	secretly brings you off-policy RL training")
//	band   w = 0 outside [low, high] (IcePop, arXiv 2510.18855)
//
// With both, the band decides first. The logarithm is held within +-maxLogRatio. A sequence's weight is the geometric
// mean of those of its rows with a target.
type importance struct {
	cap, low, high float32 // 0: off
	sequence       bool
}

func newImportance(s Settings) importance {
	return importance{cap: float32(s.ImportanceCap), low: float32(s.BandLow), high: float32(s.BandHigh),
		sequence: s.ImportanceLevel == "sequence"}
}

// weigh sets the weights of rows with a target.
func (m importance) weigh(points []point, rows Rows, old []float32) {
	if m.cap == 0 && m.high == 0 {
		return
	}
	change := rows.differences(old, rows.Rollout)
	if m.sequence {
		change = rows.means(change)
	}
	for i, t := range rows.Targets {
		if t >= 0 {
			points[i].weight, points[i].corrected = m.of(change[i])
		}
	}
}

// of is the weight of a row, or of the rows of a sequence, and whether the cap or the band made it.
func (m importance) of(change float32) (w float32, corrected bool) {
	w, _ = ratioOf(change)
	switch {
	case m.high > 0 && !(w >= m.low && w <= m.high):
		return 0, true
	case m.cap > 0 && w > m.cap:
		return m.cap, true
	}
	return w, false
}
