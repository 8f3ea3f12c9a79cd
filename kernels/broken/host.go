package broken

import (
	"encoding/binary"
	"math"

	"lockstep/kernels"
)

// load is the rows of a tensor of one group on the host, as fp32.
func (d *Device) load(t kernels.Tensor) [][]float32 {
	rows := make([][]float32, t.Rows)
	for r := range rows {
		raw := make([]byte, t.Cols*t.DType.Size())
		d.Read(raw, t.RowRange(r, r+1))
		rows[r] = make([]float32, t.Cols)
		for i := range rows[r] {
			if t.DType == kernels.BF16 {
				rows[r][i] = kernels.FromBF16(binary.LittleEndian.Uint16(raw[2*i:]))
			} else {
				rows[r][i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
		}
	}
	return rows
}

// store writes rows, rounded to the tensor's type.
func (d *Device) store(t kernels.Tensor, rows [][]float32) {
	for r, row := range rows {
		var raw []byte
		for _, v := range row {
			if t.DType == kernels.BF16 {
				raw = binary.LittleEndian.AppendUint16(raw, kernels.RoundBF16(v))
			} else {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
			}
		}
		d.Write(t.RowRange(r, r+1), raw)
	}
}

// loadInts is the rows of an int32 tensor.
func (d *Device) loadInts(t kernels.Tensor) [][]int32 {
	rows := make([][]int32, t.Rows)
	for r := range rows {
		raw := make([]byte, 4*t.Cols)
		d.Read(raw, t.RowRange(r, r+1))
		for i := range t.Cols {
			rows[r] = append(rows[r], int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
	}
	return rows
}

// storeInts writes rows of an int32 tensor.
func (d *Device) storeInts(t kernels.Tensor, rows [][]int32) {
	for r, row := range rows {
		var raw []byte
		for _, v := range row {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
		}
		d.Write(t.RowRange(r, r+1), raw)
	}
}

// throughBF16 is t rounded to bf16, in its own type.
func (d *Device) throughBF16(mem *kernels.Arena, t kernels.Tensor) kernels.Tensor {
	half, out := mem.New(kernels.BF16, t.Rows, t.Cols), mem.New(t.DType, t.Rows, t.Cols)
	d.Copy(half, t)
	d.Copy(out, half)
	return out
}

// coarse keeps four significant bits of x, so that numbers which lie close together are equal.
func coarse(x float32) float32 {
	const dropped = 20
	bits := math.Float32bits(x)
	if bits>>23&0xff == 0xff { // infinite, or not a number
		return x
	}
	return math.Float32frombits((bits + 1<<(dropped-1)) &^ (1<<dropped - 1))
}
