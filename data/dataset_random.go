package data

import "math/bits"

const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashOf folds words into one key; their order counts.
func hashOf(words ...uint64) uint64 {
	h := uint64(len(words))
	for _, w := range words {
		h = mix(mix(h+golden) ^ w)
	}
	return h
}

// counter is a counter-based generator: draw n is a function of (key, n) alone, so any part of a data set can be made
// without making what comes before it.
type counter struct{ key, n uint64 }

// below draws from [0, n); the bias is under n / 2^64.
func (c *counter) below(n int) int {
	c.n++
	hi, _ := bits.Mul64(mix(c.key+c.n*golden), uint64(n))
	return int(hi)
}
