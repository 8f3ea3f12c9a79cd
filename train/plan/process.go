package plan

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// PeakMemory is the largest resident size of the process so far, bytes.
func PeakMemory() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Maxrss << 10
}

// processMemory is what the process takes apart from tensors: what is resident now, as much again as is alive on Go's
// heap, which garbage may fill before it is collected, and buffers.
func processMemory() int {
	debug.FreeOSMemory()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	return resident() + int(max(heap.HeapAlloc, leastHeap)) + buffers
}

// buffers is what operations of the CPU, and tensors on their way to and from a device, take of the host: measured.
const buffers = 16 << 20

// leastHeap is Go's heap before it is collected first.
const leastHeap = 4 << 20

// resident is what of the process lies in memory, in bytes; 0: unknown.
func resident() int {
	pages, _ := residentPages()
	return pages * os.Getpagesize()
}

// AnonymousMemory is what of it no file holds: the rest counts as available to the process itself.
func AnonymousMemory() int {
	pages, shared := residentPages()
	return (pages - shared) * os.Getpagesize()
}

func residentPages() (pages, shared int) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	var size int
	if _, err := fmt.Fscan(bytes.NewReader(text), &size, &pages, &shared); err != nil {
		return 0, 0
	}
	return pages, shared
}
