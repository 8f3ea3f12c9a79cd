package kernels

import (
	"slices"
	"testing"
	"unsafe"
)

// memory is a device that can only allocate.
type memory struct {
	Device
	asked []int // bytes
}

func (m *memory) Alloc(bytes int) []byte {
	m.asked = append(m.asked, bytes)
	return make([]byte, bytes)
}

// Bytes in use count all chunks below, and released memory is allocated again at the same address.
func TestArenaPeak(t *testing.T) {
	dev := &memory{}
	a := NewArena(dev)
	a.Reserve(4 * arenaAlign)
	first := a.New(F32, 1, 64) // 256 bytes
	mark := a.Mark()
	for range 2 {
		a.New(BF16, 3, 128) // the chunk is full to its last byte
		if got := a.Peak(); got != 4*arenaAlign || len(dev.asked) != 1 {
			t.Fatalf("a full chunk: peak %d of chunks of %d bytes", got, dev.asked)
		}
		a.Release(mark)
	}
	a.New(F32, 1, 3*64)
	a.Reserve(2 * arenaAlign)
	big := a.New(F32, 2, 64)
	if want := []int{4 * arenaAlign, 2 * arenaAlign}; !slices.Equal(dev.asked, want) || a.Peak() != 6*arenaAlign ||
		a.Held() != 6*arenaAlign {
		t.Errorf("chunks of %d bytes, want %d; peak %d, held %d", dev.asked, want, a.Peak(), a.Held())
	}
	if a.Reserve(arenaAlign); a.New(F32, 1, 64).IsNil() || a.Peak() != 7*arenaAlign {
		t.Errorf("a third chunk: peak %d, want %d", a.Peak(), 7*arenaAlign)
	}
	a.Release(mark)
	a.New(F32, 1, 3*64)
	a.Reserve(2 * arenaAlign) // the next chunk holds it
	if again := a.New(F32, 2, 64); again.Data != big.Data || len(dev.asked) != 3 {
		t.Errorf("reserved bytes are taken anew: chunks of %d bytes", dev.asked)
	}
	if unsafe.Pointer(&a.chunks[0][0]) != first.Data {
		t.Error("the first tensor does not begin the first chunk")
	}
}

// A tensor without elements has an address of its own, as every other.
func TestArenaEmpty(t *testing.T) {
	a := NewArena(&memory{})
	if x, y := a.New(F32, 0, 5), a.New(F32, 1, 1); x.IsNil() || x.Data == y.Data {
		t.Errorf("empty tensor at %p, the next at %p", x.Data, y.Data)
	}
}

// What is pinned cannot be released; what came after it can, and all of it once it is not.
func TestPin(t *testing.T) {
	a := NewArena(&memory{})
	bottom := a.Mark()
	a.New(F32, 1, 64)
	unpin := a.Pin()
	above := a.Mark()
	a.New(F32, 1, arenaChunk/4) // in another chunk
	a.Release(above)
	a.New(F32, 1, 64)
	unpin()
	a.Release(bottom)
	a.New(F32, 1, 64)

	a.Pin()
	a.Release(bottom)
	defer func() {
		if recover() == nil {
			t.Error("pinned memory was released, and is used again")
		}
	}()
	a.New(F32, 1, 64)
}
