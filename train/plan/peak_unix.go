//go:build unix

package plan

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// PeakMemory returns the largest resident size of the process so far, in bytes; 0: unknown.
func PeakMemory() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return u.Maxrss // in bytes there, in KiB elsewhere
	}
	return u.Maxrss << 10
}
