//go:build cuda

package driver

import (
	"slices"
	"testing"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// What is staged again is not copied again, and it is there: also when the ring has come round, and when other pieces
// have been staged in between.
func TestStageAgain(t *testing.T) {
	c, err := Open(kernels.Default(), 0, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	staged := func(values ...int32) Array[int32] {
		t.Helper()
		at, got := Stage(c, values), make([]int32, len(values))
		c.Do(func() error { return cu.MemcpyDtoH(unsafe.Pointer(&got[0]), cu.DevicePtr(at), int64(4*len(got))) })
		if !slices.Equal(got, values) {
			t.Errorf("%d values are %v at %x, want %v", len(values), got[:3], at, values[:3])
		}
		return at
	}
	first := staged(1, 2, 3)
	if at := staged(1, 2, 3); at != first {
		t.Errorf("the same is staged at %x and %x", first, at)
	}
	if a, b := staged(1, 2, 3, 4), staged(1, 2, 4); a == first || b == first || a == b {
		t.Errorf("others are staged at %x and %x, where %x is taken", a, b, first)
	}
	for i := range int32(mostLatest) {
		staged(i, i, i)
	}
	if at := staged(1, 2, 3); at == first {
		t.Errorf("%x is found again behind %d other pieces", at, mostLatest)
	}
	raw := c.Alloc(ringBytes / 8)
	write := func(bytes []byte) {
		c.Write(kernels.Tensor{Data: unsafe.Pointer(unsafe.SliceData(raw)), DType: kernels.U8, Groups: 1, Rows: 1,
			Cols: len(bytes), Stride: len(bytes)}, bytes)
	}
	fill := func() { // what comes next is where the ring begins
		for c.ring.at < ringBytes {
			write(make([]byte, min(ringBytes/8, ringBytes-c.ring.at)))
		}
	}
	fill()
	again := staged(70, 70, 70)
	fill()
	if at := staged(80, 80, 80); at != again {
		t.Fatalf("the ring begins at %x and %x", again, at)
	}
	fill()
	write([]byte{70, 0, 0, 0, 70, 0, 0, 0, 70, 0, 0, 0}) // on the host it is where it was, and not on the card
	staged(70, 70, 70)
}
