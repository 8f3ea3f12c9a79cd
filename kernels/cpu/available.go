package cpu

import (
	"bytes"
	"fmt"
	"math"
	"os"
)

// Available is the memory of the host in bytes that programs can still allocate by the system's count, at most what the
// control groups of this process allow; 0 if neither is known.
func Available() int { return available("/") }

// Available is that of the host.
func (d *Device) Available() int { return Available() }

// available reads the system's files under a folder.
func available(root string) int {
	n := groupRoom(root)
	if text, err := os.ReadFile(root + "proc/meminfo"); err == nil {
		n = min(n, meminfo(text))
	}
	if n == math.MaxInt {
		return 0
	}
	return max(n, 1)
}

// meminfo is MemAvailable of /proc/meminfo in bytes; the largest int if it is missing.
func meminfo(text []byte) int {
	for line := range bytes.Lines(text) {
		var kib int
		if _, err := fmt.Sscanf(string(line), "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return math.MaxInt
}
