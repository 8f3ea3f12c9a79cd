package optim

import "fmt"

// Aggregate gives the weight of each row with a target of each sequence of a step, and the scale of the step's loss, so
// that scale * (the sum of weight * loss) is
//
//	token      the mean over all targets of the step (DAPO, arXiv 2503.14476)
//	sequence   the mean over sequences of the mean over their targets (GRPO, arXiv 2402.03300)
//	constant the mean over sequences of the sum over their targets, divided by longest, the most tokens of an answer
//	(Dr. GRPO, arXiv 2503.20783)
//	sum        the sum over targets
//	pair of two sequences after another, chosen and rejected: the mean over pairs (a pair's loss is one number, whose
//	weight all its rows carry)
//
// targets counts those of each sequence. One that has none counts nothing, but in a pair. Quotients are taken in
// float64. What divides all rows alike is in the scale alone, so a row's derivative depends on its own sequence only.
func Aggregate(kind string, targets []int, longest int) (weights []float32, scale float64) {
	total, sequences := 0, 0
	weights = make([]float32, len(targets))
	for s, n := range targets {
		total += n
		if n > 0 {
			sequences++
			weights[s] = 1
		}
	}
	if total == 0 {
		return weights, 1
	}
	switch kind {
	case "token":
		return weights, 1 / float64(total)
	case "sequence":
		for s, n := range targets {
			if n > 0 {
				weights[s] = float32(1 / float64(n))
			}
		}
		return weights, 1 / float64(sequences)
	case "constant":
		return weights, 1 / float64(sequences*longest)
	case "sum":
		return weights, 1
	case "pair":
		return weights, 1 / float64(len(targets)/2)
	}
	panic(fmt.Sprintf("optim: aggregate %q", kind))
}
