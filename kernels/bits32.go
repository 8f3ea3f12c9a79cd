//go:build 386 || arm || mips || mipsle

package kernels

// Models do not fit into 32 bits of addresses, and sizes would overflow.
var _ = lockstepNeedsA64BitSystem
