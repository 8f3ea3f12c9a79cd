package kernels

import "lockstep/quant"

// Rounder is a Device that copies weights from the memory of another device and rounds them to a storage format. For
// other devices [quant.Rounding.Round] does it on the host.
type Rounder interface {
	// CanRead reports whether operations of this device may read what another computed: both share memory and the order
	// of operations.
	CanRead(other Device) bool
	// Round: dst = round(y), where y is [quant.Rounding.Round] of src in fp32, for each of the Groups matrices. Each of
	// dst and src is F32 or BF16.
	//
	//	INT4 of 32 columns of a row from column 0 on, the last ones fewer: s = m/7, m the largest |x|. y = min(max(q,
	//	-8), 7)*s, q = x/s to the nearest integer, ties to even.
	//	FP8 of squares of 128 rows and columns from the first on, cut at the edges: s = m/448, m the largest |x|, NaN
	//	ignored. y = E4M3(x/s)*s, E4M3 to nearest even within [-448, 448].
	//
	// Where s is 0, y = +0. In INT4 an x that is infinite or NaN makes all elements with the same s NaN. Every NaN
	// becomes 0x7fc00000.
	Round(dst, src Tensor, f quant.Rounding)
}
