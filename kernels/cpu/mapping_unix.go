//go:build unix

package cpu

import "golang.org/x/sys/unix"

// mapMemory is zeroed memory off Go's heap, which unmapMemory gives back.
func mapMemory(bytes int) ([]byte, error) {
	return unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
