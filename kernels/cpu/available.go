package cpu

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
)

// Available is what the system says that programs can still take, at most what the group of this process may have; 0 where neither is known.
func (d *Device) Available() int {
	n := math.MaxInt
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		n = meminfo(text)
	}
	if limit := groupLimit(); limit > 0 {
		n = min(n, limit)
	}
	if n == math.MaxInt {
		return 0
	}
	return n
}

// meminfo is MemAvailable of /proc/meminfo in bytes; the largest int where it is not said.
func meminfo(text []byte) int {
	for line := range bytes.Lines(text) {
		var kib int
		if _, err := fmt.Sscanf(string(line), "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return math.MaxInt
}

// groupLimit is that of this process's control group; 0 where there is none ("max"). What the group has taken is not subtracted: most of it may be cache.
func groupLimit() int {
	text, err := os.ReadFile("/sys/fs/cgroup/memory.max")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return 0
	}
	return n
}
