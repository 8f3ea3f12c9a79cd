//go:build cuda

package cuda

/*
#include <cuda.h>

static CUresult lockstepLoad(CUmodule *module, const void *image, char *log, size_t size) {
	CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)size};
	return cuModuleLoadDataEx(module, image, 2, options, values);
}

static CUresult lockstepLaunch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, char *params, const size_t *offsets, size_t count) {
	void *values[64];
	for (size_t i = 0; i < count; i++) values[i] = params + offsets[i] - offsets[0];
	return cuLaunchKernel(f, gx, gy, gz, threads, 1, 1, shared, NULL, values, NULL);
}

static const char *lockstepError(CUresult code) {
	const char *text = NULL;
	return cuGetErrorString(code, &text) == CUDA_SUCCESS ? text : "unknown error of the driver";
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"unsafe"
)

// This file is what gorgonia.org/cu lacks: modules from images of any kind, kernels that want much shared memory, and launches without
// an allocation. Everything goes to the context's default stream, which orders operations.

// function is a kernel in a loaded module.
type function struct {
	f       C.CUfunction
	offsets []C.size_t // of parameters
	size    int        // bytes of parameters
}

// mostParams is how many parameters lockstepLaunch takes.
const mostParams = 64

// parameters asks the driver where the parameters of a kernel lie: the first not at 0 if it is aligned to 64 bytes, which a buffer passed whole would miss.
func (f *function) parameters() error {
	for {
		var offset, size C.size_t
		code := C.cuFuncGetParamInfo(f.f, C.size_t(len(f.offsets)), &offset, &size)
		if code == C.CUDA_ERROR_INVALID_VALUE { // after the last
			return nil
		}
		if code != C.CUDA_SUCCESS {
			return failure(code)
		}
		if len(f.offsets) == mostParams {
			return fmt.Errorf("more than %d parameters", mostParams)
		}
		f.offsets = append(f.offsets, offset)
		f.size = int(offset + size - f.offsets[0])
	}
}

// loadModule loads PTX (ending in a NUL) or a cubin and finds kernels in it, which may use up to `shared` bytes of shared memory, what they declare counted in.
func loadModule(image []byte, names []string, shared int) (map[string]function, error) {
	var module C.CUmodule
	log := make([]byte, 8192)
	if code := C.lockstepLoad(&module, unsafe.Pointer(&image[0]), (*C.char)(unsafe.Pointer(&log[0])), C.size_t(len(log))); code != C.CUDA_SUCCESS {
		text, _, _ := bytes.Cut(log, []byte{0})
		return nil, fmt.Errorf("%w: %s", failure(code), bytes.TrimSpace(text))
	}
	found := map[string]function{}
	for _, name := range names {
		var f C.CUfunction
		text := append([]byte(name), 0)
		if code := C.cuModuleGetFunction(&f, module, (*C.char)(unsafe.Pointer(&text[0]))); code != C.CUDA_SUCCESS {
			return nil, fmt.Errorf("kernel %s: %w", name, failure(code))
		}
		var declared C.int
		if code := C.cuFuncGetAttribute(&declared, C.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f); code != C.CUDA_SUCCESS {
			return nil, fmt.Errorf("kernel %s: %w", name, failure(code))
		}
		if code := C.cuFuncSetAttribute(f, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(shared)-declared); code != C.CUDA_SUCCESS {
			return nil, fmt.Errorf("kernel %s: %d bytes of shared memory: %w", name, shared, failure(code))
		}
		kernel := function{f: f}
		if err := kernel.parameters(); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
		found[name] = kernel
	}
	return found, nil
}

// run enqueues a kernel. params are its parameters laid out as in a C struct.
func (f function) run(grid [3]int, threads, shared int, params []byte) error {
	if len(params) != f.size {
		return fmt.Errorf("%d bytes of parameters: the kernel has %d", len(params), f.size)
	}
	code := C.lockstepLaunch(f.f, C.uint(grid[0]), C.uint(grid[1]), C.uint(grid[2]), C.uint(threads), C.uint(shared),
		(*C.char)(unsafe.Pointer(&params[0])), &f.offsets[0], C.size_t(len(f.offsets)))
	if code != C.CUDA_SUCCESS {
		return failure(code)
	}
	return nil
}

func failure(code C.CUresult) error { return fmt.Errorf("CUDA: %s", C.GoString(C.lockstepError(code))) }

// pinned is host memory that the card copies from by itself.
func pinned(bytes int) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	if code := C.cuMemHostAlloc(&p, C.size_t(bytes), 0); code != C.CUDA_SUCCESS {
		return nil, failure(code)
	}
	return p, nil
}
