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

// DownloadLater begins Download. The function that it returns waits for that alone, and not for what is enqueued later,
// where the device can tell them apart.
func DownloadLater[E int32 | float32](r *Rank, t kernels.Tensor) (wait func() []E) {
	if r.Transfers == nil {
		return func() []E { return Download[E](r, t) }
	}
	t.DType = kernels.I32 // of as many bytes: they are copied as they are
	read := r.Transfers.ReadAsync(t)
	return func() []E {
		bits := read()
		return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(bits))), len(bits))
	}
}

func bytesOf[E int32 | float32](v []E) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
