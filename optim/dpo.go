package optim

import (
	"fmt"

	"lockstep/kernels"
)

// DPO is direct preference optimization (Rafailov et al., arXiv 2305.18290). Sequences come in pairs, 2k the chosen
// answer and 2k+1 the rejected one. With the sums over targets of both, margin = (chosen - its reference) - (rejected -
// its reference) and z = dpo_beta * margin, the loss of a pair is
//
//	sigmoid -(1 - label_smoothing) * ln sigmoid(z) - label_smoothing * ln sigmoid(-z); the smoothing is that of
//	conservative DPO (Mitchell 2023)
//	ipo (margin - 1 / (2*dpo_beta))^2 (Azar et al., arXiv 2310.12036, equation 17), where the margin is of means over
//	the targets of each answer, as in TRL, whose authors asked those of the paper
//	ipo_sum the same of sums, as the equation is printed
//
// times the pair's share, which all rows of a pair carry as their weight. Sums are float64 in row order, the rest is
// fp32.
type DPO struct {
	beta, smoothing float32
	ipo, means      bool
}

var dpoDefaults = Settings{DPOBeta: 0.1, DPOLoss: "sigmoid", Aggregate: "pair"}

func newDPO(s Settings) Objective {
	return DPO{beta: float32(s.DPOBeta), smoothing: float32(s.LabelSmoothing),
		ipo: s.DPOLoss == "ipo" || s.DPOLoss == "ipo_sum", means: s.DPOLoss == "ipo"}
}

// Reach is ReachSequence: a row's derivative depends on its whole pair.
func (DPO) Reach() Reach { return ReachSequence }

// Derivative is weight * dloss/dmargin on chosen rows and its negative on rejected ones.
func (o DPO) Derivative(d []float32, rows Rows) {
	for _, p := range rows.pairs() {
		slope := float32(p.weight * o.slope(o.margin(p)))
		slopes := [2]float32{slope, -slope}
		if o.means {
			slopes = [2]float32{slope / float32(max(1, p.counts[0])), -slope / float32(max(1, p.counts[1]))}
		}
		for i := p.from; i < p.to; i++ {
			d[i] = 0
			if rows.Targets[i] < 0 {
				continue
			}
			d[i] = slopes[p.side(i)]
		}
	}
}

// Measure adds the losses, and of both sides the log-probabilities and the rewards beta * (log-probability -
// reference).
func (o DPO) Measure(m *Measures, rows Rows) {
	for _, p := range rows.pairs() {
		m.Targets += p.targets
		m.Pairs++
		if p.margin() > 0 {
			m.Preferred++
		}
		m.Chosen += float64(float64(o.beta) * p.sums[0])
		m.Rejected += float64(float64(o.beta) * p.sums[1])
		m.ChosenLogProb += p.logprobs[0]
		m.RejectedLogProb += p.logprobs[1]
		m.Loss += float64(float64(p.weight) * o.value(o.margin(p)))
	}
}

// slope is the derivative of the loss by the margin.
func (o DPO) slope(margin float32) float32 {
	if o.ipo {
		return 2 * (margin - 1/float32(2*o.beta))
	}
	z := float32(o.beta * margin)
	return float32(o.beta * (float32(o.smoothing*sigmoid(z)) - float32((1-o.smoothing)*sigmoid(-z))))
}

func (o DPO) value(margin float32) float64 {
	if o.ipo {
		off := float64(margin - 1/float32(2*o.beta))
		return float64(off * off)
	}
	z := float32(o.beta * margin) // -ln sigmoid(z) = softplus(-z)
	right, wrong := float64(kernels.Exp2Poly.Softplus(-z)), float64(kernels.Exp2Poly.Softplus(z))
	return float64((1-float64(o.smoothing))*right) + float64(float64(o.smoothing)*wrong)
}

// pair is rows [from, to), those of the rejected answer from rejected on.
type pair struct {
	from, rejected, to int
	targets            int
	counts             [2]int // of targets, chosen and rejected
	weight             float32
	sums               [2]float64 // of log-probability - reference, chosen and rejected
	logprobs           [2]float64 // of log-probability
}

func (p pair) margin() float32 { return float32(p.sums[0] - p.sums[1]) }

// side of a row is 0 in the chosen answer and 1 in the rejected one.
func (p pair) side(row int) int {
	if row >= p.rejected {
		return 1
	}
	return 0
}

// margin is that of the loss.
func (o DPO) margin(p pair) float32 {
	if !o.means {
		return p.margin()
	}
	return float32(p.sums[0]/float64(max(1, p.counts[0])) - p.sums[1]/float64(max(1, p.counts[1])))
}

// pairs sums over the sequences.
func (r Rows) pairs() []pair {
	if len(r.Sequences)%2 == 0 { // the bounds are one more than the sequences
		panic(fmt.Sprintf("optim: pairs of %d sequences", len(r.Sequences)-1))
	}
	var pairs []pair
	for s := 0; s+2 < len(r.Sequences); s += 2 {
		p := pair{from: r.Sequences[s], rejected: r.Sequences[s+1], to: r.Sequences[s+2]}
		for i := p.from; i < p.to; i++ {
			if r.Targets[i] < 0 {
				continue
			}
			if p.targets > 0 && r.Weight[i] != p.weight {
				panic(fmt.Sprintf("optim: rows of a pair weigh %v and %v", p.weight, r.Weight[i]))
			}
			p.weight = r.Weight[i]
			p.targets++
			side := p.side(i)
			p.counts[side]++
			p.sums[side] += float64(r.LogProb[i]) - float64(r.Reference[i])
			p.logprobs[side] += float64(r.LogProb[i])
		}
		pairs = append(pairs, p)
	}
	return pairs
}
