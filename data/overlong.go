package data

import "fmt"

// Overlong is DAPO's soft penalty for overlong answers (arXiv 2503.14476, equation 13), to be added to the reward. For
// an answer of tokens tokens it is:
//
//	0                               up to most - buffer
//	(most - buffer - tokens)/buffer up to most
//	-1                              above
//
// most is the longest answer without the full penalty, buffer is from 1 to most.
func Overlong(tokens, most, buffer int) float64 {
	if buffer < 1 || buffer > most {
		panic(fmt.Sprintf("data: %d of at most %d tokens are penalised", buffer, most))
	}
	switch {
	case tokens <= most-buffer:
		return 0
	case tokens <= most:
		return float64(most-buffer-tokens) / float64(buffer)
	}
	return -1
}
