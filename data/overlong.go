package data

import "fmt"

// Overlong is the soft punishment of answers that run too long, of DAPO (arXiv 2503.14476, equation 13), to be added to
// the reward. Of an answer of so many tokens:
//
//	0                               up to most - buffer
//	(most - buffer - tokens)/buffer up to most
//	-1                              above
//
// most is the length up to which answers are wanted, buffer from 1 to most.
func Overlong(tokens, most, buffer int) float64 {
	if buffer < 1 || buffer > most {
		panic(fmt.Sprintf("data: %d of at most %d tokens are punished", buffer, most))
	}
	switch {
	case tokens <= most-buffer:
		return 0
	case tokens <= most:
		return float64(most-buffer-tokens) / float64(buffer)
	}
	return -1
}
