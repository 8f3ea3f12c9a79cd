//go:build unix

package safetensors

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapping is the bytes of a file, until unmapBytes. They outlive the descriptor.
func mapping(f *os.File, bytes int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, bytes, unix.PROT_READ, unix.MAP_SHARED)
}

func unmapBytes(mapped []byte) error { return unix.Munmap(mapped) }

// forget is advice about whole pages: where it cannot be taken nothing is lost but memory.
func forget(pages []byte) { _ = unix.Madvise(pages, unix.MADV_DONTNEED) }
