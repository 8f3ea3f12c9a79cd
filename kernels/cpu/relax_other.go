//go:build !amd64

package cpu

// relax does nothing where there is no PAUSE instruction.
func relax() {}
