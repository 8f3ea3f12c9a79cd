//go:build !amd64

package cpu

// relax would tell the processor that the thread is waiting in a loop.
func relax() {}
