package checkpoint

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"

	"lockstep/kernels"
)

// DTypeName is what the safetensors format calls a storage type.
func DTypeName(d kernels.DType) string {
	if d == kernels.BF16 {
		return "BF16"
	}
	return "F32"
}

// Put writes an element, little-endian, rounded to the storage type.
func Put(raw []byte, d kernels.DType, x float32) {
	if d == kernels.BF16 {
		binary.LittleEndian.PutUint16(raw, kernels.RoundBF16(x))
	} else {
		binary.LittleEndian.PutUint32(raw, math.Float32bits(x))
	}
}

// PutAll writes elements one after the other, as Put does.
func PutAll(raw []byte, d kernels.DType, v []float32) {
	if d == kernels.BF16 {
		for i, x := range v {
			binary.LittleEndian.PutUint16(raw[2*i:], kernels.RoundBF16(x))
		}
		return
	}
	for i, x := range v {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(x))
	}
}

// Round is numbers rounded to a storage type.
func Round(v []float32, d kernels.DType) []byte {
	size := d.Size()
	raw := make([]byte, size*len(v))
	InParallel(len(v), 1, func(from, to int) { PutAll(raw[from*size:], d, v[from:to]) })
	return raw
}

// GetAll reads elements, little-endian, of a storage type.
func GetAll(out []float32, raw []byte, d kernels.DType) {
	if d == kernels.F32 {
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return
	}
	for i := range out {
		out[i] = kernels.FromBF16(binary.LittleEndian.Uint16(raw[2*i:]))
	}
}

// InParallel runs body over [0, n) on all cores, each call on a range that begins at a multiple of grain.
func InParallel(n, grain int, body func(from, to int)) {
	workers := runtime.GOMAXPROCS(0)
	each := (n + workers - 1) / workers
	each = (each + grain - 1) / grain * grain
	var wait sync.WaitGroup
	for from := 0; from < n; from += each {
		wait.Go(func() { body(from, min(from+each, n)) })
	}
	wait.Wait()
}
