//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"
)

// peak is the most memory that a process that has ended had, in bytes.
func peak(s *os.ProcessState) int64 {
	n := int64(s.SysUsage().(*syscall.Rusage).Maxrss)
	if runtime.GOOS == "darwin" {
		return n
	}
	return n << 10
}
