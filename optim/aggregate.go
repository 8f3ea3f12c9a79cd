package optim

import "fmt"

// Aggregate gives the weight of each row with a target of each sequence of a step, so that the sum of weight * loss is
//
//	token      the mean over all targets of the step (DAPO, arXiv 2503.14476)
//	sequence   the mean over sequences of the mean over their targets (GRPO, arXiv 2402.03300)
//	constant the mean over sequences of the sum over their targets, divided by longest, the most tokens of an answer
//	(Dr. GRPO, arXiv 2503.20783)
//	sum        the sum over targets
//	pair of two sequences after another, chosen and rejected: the mean over pairs (a pair's loss is one number, whose
//	weight all its rows carry)
//
// targets counts those of each sequence. One that has none counts nothing, but in a pair. The quotient is taken in
// float64.
func Aggregate(kind string, targets []int, longest int) []float32 {
	total, sequences := 0, 0
	for _, n := range targets {
		total += n
		if n > 0 {
			sequences++
		}
	}
	weights := make([]float32, len(targets))
	for s, n := range targets {
		if n == 0 {
			continue
		}
		switch kind {
		case "token":
			weights[s] = share(total)
		case "sequence":
			weights[s] = share(sequences * n)
		case "constant":
			weights[s] = share(sequences * longest)
		case "sum":
			weights[s] = 1
		case "pair":
			weights[s] = share(len(targets) / 2)
		default:
			panic(fmt.Sprintf("optim: aggregate %q", kind))
		}
	}
	return weights
}

func share(n int) float32 { return float32(1 / float64(n)) }
