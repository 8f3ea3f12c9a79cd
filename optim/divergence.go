package optim

import "math"

// Divergence measures how far the trainer's log-probabilities lp of sampled rows are from q, those that the engine
// recorded when it sampled them. Under one forward for both Differ is 0. Means are over tokens; the estimators are
// Schulman's ("Approximating KL divergence", 2020) of KL(engine || trainer).
type Divergence struct {
	Tokens  int     // rows with a target
	Differ  int     // of them, those whose bits differ
	Largest float64 // |lp - q|

	LowRatio, HighRatio float64 // smallest and largest e^(lp - q) with lp - q held within +-20; 0 of nothing

	k1, k3, abs, logprob, ratio float64 // sums; logprob that of q
}

// Add takes rows with LogProb and Rollout, and counts those with a target.
func (d *Divergence) Add(rows Rows) {
	for i, t := range rows.Targets {
		if t < 0 {
			continue
		}
		lp, q := rows.LogProb[i], rows.Rollout[i]
		x := float64(lp) - float64(q)
		d.Tokens++
		d.logprob += float64(q)
		if math.Float32bits(lp) != math.Float32bits(q) {
			d.Differ++
		}
		d.Largest = max(d.Largest, math.Abs(x))
		d.abs += math.Abs(x)
		d.k1 -= x
		d.k3 += excess(min(max(x, -maxLogRatio), maxLogRatio))
		r, _ := ratioOf(lp - q)
		d.addRatio(float64(r))
	}
}

func (d *Divergence) addRatio(r float64) {
	if d.Tokens == 1 {
		d.LowRatio, d.HighRatio = r, r
	}
	d.LowRatio, d.HighRatio = min(d.LowRatio, r), max(d.HighRatio, r)
	d.ratio += r
}

// Ratio is the mean of e^(lp - q), by the fp32 exponential of objectives; 0 of nothing.
func (d *Divergence) Ratio() float64 { return d.mean(d.ratio) }

// Mean is the mean of |lp - q|; 0 of nothing.
func (d *Divergence) Mean() float64 { return d.mean(d.abs) }

// Entropy estimates that of the engine from its own samples: the mean of -q, nats a token.
func (d *Divergence) Entropy() float64 { return d.mean(-d.logprob) }

// K1 is the mean of q - lp, nats a token.
func (d *Divergence) K1() float64 { return d.mean(d.k1) }

// K3 is the mean of e^(lp - q) - 1 - (lp - q), each with lp - q held within +-20.
func (d *Divergence) K3() float64 { return d.mean(d.k3) }

func (d *Divergence) mean(sum float64) float64 { return sum / float64(max(d.Tokens, 1)) }
