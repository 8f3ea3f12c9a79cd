package plan

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// processMemory is the memory of the process apart from tensors: what is resident now, buffers, and the live size of
// Go's heap once more, which garbage may fill before it is collected.
func processMemory() int {
	debug.FreeOSMemory()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	return resident() + int(max(heap.HeapAlloc, leastHeap)) + buffers
}

// buffers is the host memory of CPU operations and of copies to and from a device, as measured.
const buffers = 16 << 20

// leastHeap is the size that Go's heap reaches before the first collection.
const leastHeap = 4 << 20

// resident is what of the process lies in memory, in bytes; 0: unknown.
func resident() int {
	pages, _ := residentPages()
	return pages * os.Getpagesize()
}

// anonymousMemory returns the resident memory that no file backs, in bytes. The rest counts as available.
func anonymousMemory() int {
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
