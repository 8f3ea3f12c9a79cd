package kernels

import (
	"slices"
	"unsafe"
)

// Arena allocates tensors from large chunks of device memory and frees them in stack order. Activations live in one:
// Forward pushes, Backward pops, and after the first step of a kind the device allocates nothing.
// An Arena belongs to one rank and is not safe for concurrent use.
type Arena struct {
	dev    Device
	more   func(bytes int) []byte
	chunks [][]byte // each a device allocation; host slices only in type, never read here
	at     Mark
	peak   int
	held   int
	pins   []*Mark // positions that must not be released
	torn   bool    // one of them was
}

// Mark is a position of an Arena to return to.
type Mark struct{ chunk, used, below int }

const (
	arenaChunk = 64 << 20
	arenaAlign = 256
)

// NewArena makes an empty arena on the device.
func NewArena(dev Device) *Arena { return &Arena{dev: dev, more: dev.Alloc} }

// NewHostArena makes an empty arena of host memory that is pinned for a device. One that is no [HostMemory] has none.
func NewHostArena(dev Device) *Arena {
	host, ok := dev.(HostMemory)
	if !ok {
		panic("kernels: host memory of a device that pins none")
	}
	return &Arena{more: host.Pin}
}

// Mark is the current position.
func (a *Arena) Mark() Mark { return a.at }

// Release frees everything allocated since the mark. Its memory is reused and not cleared. Where some of it is pinned,
// that shows in [Arena.CheckPins], which New calls: a rank that fails releases what exchanges still use.
func (a *Arena) Release(m Mark) {
	a.torn = a.torn || slices.ContainsFunc(a.pins, func(p *Mark) bool { return m.before(*p) })
	a.at = m
}

// CheckPins panics where memory has been released that was pinned.
func (a *Arena) CheckPins() {
	if a.torn {
		panic("kernels: memory was released that an exchange still uses: it was not waited for")
	}
}

func (m Mark) before(other Mark) bool {
	return m.chunk < other.chunk || m.chunk == other.chunk && m.used < other.used
}

// Below tells whether a tensor lies in what was allocated before the mark.
func (a *Arena) Below(m Mark, t Tensor) bool {
	for i, chunk := range a.chunks[:min(m.chunk+1, len(a.chunks))] {
		if at := uintptr(t.Data) - uintptr(unsafe.Pointer(unsafe.SliceData(chunk))); at < uintptr(len(chunk)) {
			return i < m.chunk || at < uintptr(m.used)
		}
	}
	return false
}

// Pin keeps what is allocated now from being released until unpin is called.
func (a *Arena) Pin() (unpin func()) {
	pin := &Mark{}
	*pin = a.at
	a.pins = append(a.pins, pin)
	return func() { a.pins = slices.DeleteFunc(a.pins, func(p *Mark) bool { return p == pin }) }
}

// Peak is the largest number of bytes in use so far.
func (a *Arena) Peak() int { return a.peak }

// Held is the number of bytes that the arena has allocated on its device.
func (a *Arena) Held() int { return a.held }

// Reserve makes room for this many bytes after the current position in one chunk, so that no chunk ends with unused
// bytes in between.
func (a *Arena) Reserve(bytes int) {
	next := a.at.chunk
	if next < len(a.chunks) {
		if bytes <= len(a.chunks[next])-a.at.used {
			return
		}
		next++
	}
	if bytes > 0 && (next == len(a.chunks) || len(a.chunks[next]) < bytes) {
		a.chunks = slices.Insert(a.chunks, next, a.alloc(bytes))
	}
}

func (a *Arena) alloc(bytes int) []byte {
	a.held += bytes
	return a.more(bytes)
}

// New is an uninitialised contiguous [rows, cols] tensor.
func (a *Arena) New(d DType, rows, cols int) Tensor { return a.NewGrouped(d, 1, rows, cols) }

// NewGrouped is an uninitialised contiguous [groups, rows, cols] tensor.
func (a *Arena) NewGrouped(d DType, groups, rows, cols int) Tensor {
	p := a.take(ArenaBytes(d, groups*rows, cols))
	return Tensor{Data: p, DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
}

// ArenaBytes is the number of bytes that a [rows, cols] tensor takes in an arena.
func ArenaBytes(d DType, rows, cols int) int {
	return max((rows*cols*d.Size()+arenaAlign-1)/arenaAlign, 1) * arenaAlign
}

// Zeros is New, cleared.
func (a *Arena) Zeros(d DType, rows, cols int) Tensor {
	t := a.New(d, rows, cols)
	a.dev.Zero(t)
	return t
}

func (a *Arena) take(size int) unsafe.Pointer {
	a.CheckPins()
	for a.at.chunk < len(a.chunks) && a.at.used+size > len(a.chunks[a.at.chunk]) {
		a.at = Mark{chunk: a.at.chunk + 1, below: a.at.below + len(a.chunks[a.at.chunk])}
	}
	if a.at.chunk == len(a.chunks) {
		a.chunks = append(a.chunks, a.alloc(max(size, arenaChunk)))
	}
	p := unsafe.Pointer(&a.chunks[a.at.chunk][a.at.used])
	a.at.used += size
	a.peak = max(a.peak, a.at.below+a.at.used)
	return p
}
