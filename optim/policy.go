package optim

// policy is the common part of the policy losses:
//
//	loss = sum over rows with a target of weight * (term + kl_coef * K(reference - lp))
//
// where term is a loss of the row's ratio e^(lp - old), its advantage and its importance weight e^(old - rollout). old
// is Rows.Old, or Rows.Rollout where that is nil: with both, clipping bounds how far the update goes and the weight
// corrects for who sampled (decoupled PPO, Hilton, Cobbe & Schulman, arXiv 2110.00641). All derivatives are fp32, every
// operation rounded by itself: float32(weight * slope) + float32(weight * float32(kl_coef * K')).
type policy struct {
	term       term
	sequence   bool // the ratio is the geometric mean over the sequence
	throughAll bool // and its gradient flows to all rows of the sequence
	importance importance
	penalty    penalty
}

// term is the loss of one row and its derivative by the row's log-probability.
type term interface {
	// slope is 0 and clipped where clipping removes the gradient; a loss that clipping only limits reports clipped
	// with a slope.
	slope(x point) (d float32, clipped bool)
	value(x point) float64
}

// point is the input of a term for one row.
type point struct {
	logprob   float32
	advantage float32
	change    float32 // lp - old
	ratio     float32 // e^change
	capped    bool    // by maxLogRatio: the ratio does not change with lp
	weight    float32 // importance; 1 where that is off
	corrected bool    // and it is not e^(old - rollout): cut to the cap, or 0 because of the band
}

func newPolicy(s Settings, t term) policy {
	return policy{term: t, importance: newImportance(s), penalty: penalty{coef: float32(s.KLCoef),
		estimator: s.KLEstimator}}
}

// Reach is ReachRow but where ratios or importance weights are those of whole sequences.
func (p policy) Reach() Reach {
	if p.sequence || p.importance.sequence {
		return ReachSequence
	}
	return ReachRow
}

// Derivative differentiates the term, then the penalty.
func (p policy) Derivative(d []float32, rows Rows) {
	for i, x := range p.points(rows) {
		d[i] = 0
		if rows.Targets[i] >= 0 {
			slope, _ := p.term.slope(x)
			d[i] = float32(rows.Weight[i] * slope)
		}
	}
	if p.throughAll {
		copy(d, rows.means(d))
	}
	if p.penalty.coef == 0 {
		return
	}
	for i, t := range rows.Targets {
		if t >= 0 {
			d[i] += float32(rows.Weight[i] * p.penalty.slope(rows.LogProb[i], rows.Reference[i]))
		}
	}
}

// Measure adds the loss, the divergence from the reference where there is one, and counts of what was bounded.
func (p policy) Measure(m *Measures, rows Rows) {
	for i, x := range p.points(rows) {
		if rows.Targets[i] < 0 {
			continue
		}
		m.Targets++
		if _, clipped := p.term.slope(x); clipped {
			m.Clipped++
		}
		if x.corrected {
			m.Corrected++
		}
		loss := p.term.value(x)
		if rows.Reference != nil {
			kl := p.penalty.value(rows.LogProb[i], rows.Reference[i])
			m.KL += kl
			loss += float64(float64(p.penalty.coef) * kl)
		}
		m.Loss += float64(float64(rows.Weight[i]) * loss)
	}
}

// points makes a point of each row; those without a target are zero.
func (p policy) points(rows Rows) []point {
	old := rows.Old
	if old == nil {
		old = rows.Rollout
	}
	change := rows.differences(rows.LogProb, old)
	if p.sequence {
		change = rows.means(change)
	}
	points := make([]point, len(rows.Targets))
	for i, t := range rows.Targets {
		if t < 0 {
			continue
		}
		x := point{logprob: rows.LogProb[i], advantage: rows.Advantage[i], change: change[i], weight: 1}
		x.ratio, x.capped = ratioOf(x.change)
		points[i] = x
	}
	p.importance.weigh(points, rows, old)
	return points
}

// differences is a - b of each row with a target and 0 of the others.
func (r Rows) differences(a, b []float32) []float32 {
	out := make([]float32, len(r.Targets))
	for i, t := range r.Targets {
		if t >= 0 {
			out[i] = a[i] - b[i]
		}
	}
	return out
}

// means gives every row with a target the mean of v over those of its sequence, summed in float64 in row order, and 0
// to the others.
func (r Rows) means(v []float32) []float32 {
	if r.Sequences == nil {
		panic("optim: mean over sequences without Rows.Sequences")
	}
	out := make([]float32, len(r.Targets))
	for s, from := range r.Sequences[:len(r.Sequences)-1] {
		to := r.Sequences[s+1]
		sum, n := 0.0, 0
		for i := from; i < to; i++ {
			if r.Targets[i] >= 0 {
				sum += float64(v[i])
				n++
			}
		}
		for i := from; i < to; i++ {
			if r.Targets[i] >= 0 {
				out[i] = float32(sum / float64(n))
			}
		}
	}
	return out
}
