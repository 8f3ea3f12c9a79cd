package optim

import (
	"fmt"
	"math"
)

// advantageEps is added to the standard deviation, as TRL does (verl has 1e-6), which keeps groups of nearly equal
// rewards small.
const advantageEps = 1e-4

// GroupAdvantages compares rewards, consecutive groups of size answers to one prompt each. mean and deviation (of the
// sample, n-1) are the group's:
//
//	group_norm     (reward - mean) / (deviation + 1e-4)    GRPO, arXiv 2402.03300
//	group_mean     reward - mean                           Dr. GRPO, arXiv 2503.20783
//	leave_one_out  reward - mean of the others             RLOO, arXiv 2402.14740
//	batch_norm (reward - mean of the group) / (deviation of that over all groups + 1e-4) REINFORCE++, arXiv 2501.03262
//	none           reward
//
// A group whose rewards are equal gets exactly 0 but for none.
func GroupAdvantages(kind string, rewards []float64, size int) []float32 {
	centred := make([]float64, len(rewards))
	for from := 0; from < len(rewards); from += size {
		centre(centred[from:from+size], rewards[from:from+size])
	}
	out, all := make([]float32, len(rewards)), deviation(centred)
	for i, x := range centred {
		group := centred[i/size*size : (i/size+1)*size]
		switch kind {
		case "group_norm":
			x /= deviation(group) + advantageEps
		case "group_mean":
		case "leave_one_out":
			x *= float64(size) / float64(max(size-1, 1))
		case "batch_norm":
			x /= all + advantageEps
		case "none":
			x = rewards[i]
		default:
			panic(fmt.Sprintf("optim: advantage %q", kind))
		}
		out[i] = float32(x)
	}
	return out
}

// centre subtracts the mean; equal rewards give exact zeros.
func centre(out, rewards []float64) {
	sum, equal := 0.0, true
	for _, r := range rewards {
		sum += r
		equal = equal && r == rewards[0]
	}
	for i, r := range rewards {
		if !equal {
			out[i] = r - sum/float64(len(rewards))
		}
	}
}

// deviation is the standard deviation of values whose mean is 0.
func deviation(centred []float64) float64 {
	sum := 0.0
	for _, x := range centred {
		sum += float64(x * x)
	}
	return math.Sqrt(sum / float64(max(len(centred)-1, 1)))
}
