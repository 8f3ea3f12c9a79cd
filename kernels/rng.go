package kernels

import "math/bits"

// Uniform is a number in [0, 1), a multiple of 2^-24, that depends only on its three keys: the upper 24 bits of
// word 0 of Philox4x32-10 with the seed as key and (index, request) as counter.
func Uniform(seed, request, index uint64) float32 {
	w := Philox([4]uint32{uint32(index), uint32(index >> 32), uint32(request), uint32(request >> 32)},
		[2]uint32{uint32(seed), uint32(seed >> 32)})
	return float32(w[0]>>8) * (1.0 / (1 << 24))
}

// Philox is the counter-based generator Philox4x32-10 (Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC11): a bijection of the counter chosen by the key. The same words come out on any device, in any
// order.
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		mul0, mul1   = 0xD2511F53, 0xCD9E8D57
		weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85 // golden ratio, sqrt(3)-1
		rounds       = 10
	)
	c := counter
	for range rounds {
		hi0, lo0 := bits.Mul32(mul0, c[0])
		hi1, lo1 := bits.Mul32(mul1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += weyl0
		key[1] += weyl1
	}
	return c
}
