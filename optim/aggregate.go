package optim

import "fmt"

// Aggregate is the weight of a row of each sequence of a step in its loss, from the sequences' numbers of targets:
//
//	token     1 / targets of the step: every token counts alike (DAPO, arXiv 2503.14476)
//	sequence  1 / (sequences * targets of the sequence): every answer counts alike (GRPO, arXiv 2402.03300)
//	constant  1 / (sequences * longest), longest being the most tokens an answer may have (Dr. GRPO, arXiv 2503.20783)
//	sum       1
func Aggregate(kind string, targets []int, longest int) []float32 {
	all := 0
	for _, n := range targets {
		all += n
	}
	weights := make([]float32, len(targets))
	for i, n := range targets {
		switch kind {
		case "token":
			weights[i] = float32(1 / float64(max(all, 1)))
		case "sequence":
			weights[i] = float32(1 / (float64(len(targets)) * float64(max(n, 1))))
		case "constant":
			weights[i] = float32(1 / (float64(len(targets)) * float64(longest)))
		case "sum":
			weights[i] = 1
		default:
			panic(fmt.Sprintf("optim: aggregate %q", kind))
		}
	}
	return weights
}
