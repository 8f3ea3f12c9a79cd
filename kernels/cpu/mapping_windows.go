package cpu

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapMemory is zeroed memory off Go's heap, which unmapMemory gives back.
func mapMemory(bytes int) ([]byte, error) {
	at, err := windows.VirtualAlloc(0, uintptr(bytes), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), bytes), nil // no memory of Go's, whose collector ignores it
}

func unmapMemory(b []byte) error {
	return windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0, windows.MEM_RELEASE)
}
