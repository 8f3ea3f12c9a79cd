package safetensors

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapping is the bytes of a file, until unmapBytes. They outlive the descriptor.
func mapping(f *os.File, bytes int) ([]byte, error) {
	h, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, err
	}
	at, err := windows.MapViewOfFile(h, windows.FILE_MAP_READ, 0, 0, uintptr(bytes))
	if closed := windows.CloseHandle(h); err == nil { // the view keeps the mapping
		err = closed
	}
	if err != nil {
		return nil, err
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), bytes), nil // no memory of Go's, whose collector ignores it
}

func unmapBytes(mapped []byte) error {
	return windows.UnmapViewOfFile(uintptr(unsafe.Pointer(unsafe.SliceData(mapped))))
}

// forget is for systems that count a file's pages as the process's; Windows takes back what it needs.
func forget([]byte) {}
