package model

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"lockstep/kernels"
	"lockstep/quant"
)

// restored is raw elements of t in another storage type, projections rounded by the format, on all cores.
func restored(raw []byte, t kernels.Tensor, to kernels.DType, subs []*Sub, format quant.Format) []byte {
	out := make([]byte, t.Len()*to.Size())
	var all []band
	for _, b := range bands(t, subs) {
		for ; b.from < b.to; b.from += quant.FP8Block { // whole squares
			all = append(all, band{b.from, min(b.from+quant.FP8Block, b.to), b.round})
		}
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.NumCPU(), len(all)) {
		workers.Go(func() {
			scratch := make([]float32, quant.FP8Block*t.Cols)
			for i := next.Add(1) - 1; int(i) < len(all); i = next.Add(1) - 1 {
				b := all[i]
				from, end := b.from*t.Cols, b.to*t.Cols
				if !b.round && t.DType == to {
					copy(out[from*to.Size():end*to.Size()], raw[from*to.Size():])
					continue
				}
				w := scratch[:end-from]
				get(w, raw[from*t.DType.Size():], t.DType)
				if b.round {
					format.Round(w, b.to-b.from, t.Cols)
				}
				for j, x := range w {
					put(out[(from+j)*to.Size():], to, x)
				}
			}
		})
	}
	workers.Wait()
	return out
}

// get reads elements, little-endian, of a storage type.
func get(out []float32, raw []byte, d kernels.DType) {
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
