package kernels

import "lockstep/quant"

// Rounder is a Device that takes weights over from the memory of another, as storing them in fewer bits leaves them.
// For other devices [quant.Format.Round] does it on the host.
type Rounder interface {
	// Sees reports whether operations here may read what another device computed: both have one memory, and carry out
	// what they are asked in one order.
	Sees(other Device) bool
	// Round makes dst = round(y), y what [quant.Format.Round] makes of src in fp32, each of the Groups matrices by
	// itself. Both are F32 or BF16, each of a type of its own.
	//
	//	INT4 of 32 columns of a row from column 0 on, the last ones fewer: s = m/7, m the largest |x|. y = min(max(q,
	//	-8), 7)*s, q = x/s to the nearest integer, ties to even.
	//	FP8 of squares of 128 rows and columns from the first on, cut at the edges: s = m/448, m the largest |x|, NaN
	//	left out. y = E4M3(x/s)*s, E4M3 to nearest even within [-448, 448].
	//
	// Where s is 0, y = +0. In INT4 one x that is infinite or NaN makes all that share its s NaN. What is NaN becomes
	// the NaN 0x7fc00000.
	Round(dst, src Tensor, f quant.Format)
}
