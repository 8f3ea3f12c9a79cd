package kernels

import "lockstep/quant"

// Rounder is a Device that copies weights from the memory of another device and rounds them to a storage format. For
// other devices [quant.Encoding.Round] does it on the host.
type Rounder interface {
	// CanRead reports whether operations of this device may read what another computed: both share memory and the order
	// of operations.
	CanRead(other Device) bool
	// Round: dst = round(y), where y is [quant.Encoding.Round] of src in fp32, for each of the Groups matrices. Each of
	// dst and src is F32 or BF16. Of the encodings it has INT4 and FP8.
	Round(dst, src Tensor, f quant.Encoding)
}
