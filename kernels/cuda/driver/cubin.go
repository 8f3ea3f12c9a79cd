//go:build cuda

package driver

// #include <nvrtc.h>
import "C"

import (
	"errors"
	"unsafe"

	"gorgonia.org/cu/nvrtc"
)

// cubin is the machine code of a compiled program. gorgonia.org/cu/nvrtc, whose Program holds NVRTC's handle and
// nothing else, asks for assembly only.
func cubin(p *nvrtc.Program) ([]byte, error) {
	handle := *(*C.nvrtcProgram)(unsafe.Pointer(p))
	var size C.size_t
	if code := C.nvrtcGetCUBINSize(handle, &size); code != C.NVRTC_SUCCESS {
		return nil, errors.New(C.GoString(C.nvrtcGetErrorString(code)))
	}
	if size == 0 {
		return nil, errors.New("no machine code")
	}
	code := make([]byte, size)
	if status := C.nvrtcGetCUBIN(handle, (*C.char)(unsafe.Pointer(&code[0]))); status != C.NVRTC_SUCCESS {
		return nil, errors.New(C.GoString(C.nvrtcGetErrorString(status)))
	}
	return code, nil
}
