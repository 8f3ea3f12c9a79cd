package cpu

import (
	"encoding/binary"
	"fmt"

	"lockstep/kernels"
)

// Draw fills t, contiguous, with numbers that depend on the key and their place alone.
func (d *Device) Draw(t kernels.Tensor, o kernels.Draw) {
	if !t.Contiguous() {
		panic(fmt.Sprintf("cpu: Draw: %s has strides", t))
	}
	const grain = 1 << 12
	if t.DType == kernels.F32 {
		out := t.F32s()
		d.pool.each(len(out), grain, func(_, from, to int) { o.Values(out[from:to], from) })
		return
	}
	out := t.BF16s()
	d.pool.each(len(out), grain, func(_, from, to int) {
		var values [grain]float32
		for ; from < to; from += grain { // a single thread gets all
			part := values[:min(grain, to-from)]
			o.Values(part, from)
			for i, x := range part {
				out[from+i] = kernels.RoundBF16(x)
			}
		}
	})
}

// DrawCodes fills the codes of a weight, whose first matrix is matrix `first` of the key, and makes all scales one.
func (d *Device) DrawCodes(w kernels.QuantizedWeight, key uint64, first int, scale float32) {
	for g := range w.Groups {
		codes := w.Codes.Group(g).Raw()
		d.pool.each((len(codes)+7)/8, 1<<13, func(_, from, to int) {
			for i := from; i < to; i++ {
				var eight [8]byte
				binary.LittleEndian.PutUint64(eight[:], kernels.DrawnCodes(w.Format.Code, key, first+g, i))
				copy(codes[8*i:], eight[:])
			}
		})
	}
	w.FillScales(scale)
}
