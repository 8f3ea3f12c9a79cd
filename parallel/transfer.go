package parallel

import (
	"unsafe"

	"lockstep/kernels"
)

// Upload copies a vector to the rank's stack.
func Upload[E int32 | float32](r *Rank, v []E) kernels.Tensor {
	d := kernels.I32
	if _, ok := any(v).([]float32); ok {
		d = kernels.F32
	}
	t := r.Stack.New(d, 1, len(v))
	r.Dev.Write(t, bytesOf(v))
	return t
}

// Download copies a contiguous fp32 or int32 tensor to the host, after everything enqueued before it.
func Download[E int32 | float32](r *Rank, t kernels.Tensor) []E {
	out := make([]E, t.Len())
	r.Dev.Read(bytesOf(out), t)
	return out
}

func bytesOf[E int32 | float32](v []E) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
