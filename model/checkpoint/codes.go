package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"lockstep/data/safetensors"
	"lockstep/kernels"
	"lockstep/quant"
)

// Codes is a weight's codes and scales as a checkpoint has them: rows of columns, whatever the shape of its numbers.
type Codes struct {
	Format     quant.Format           // of the device's copy, which has a scale for each row
	rows, cols int                    // of each matrix
	stride     int                    // bytes from a row's codes to the next
	high       int                    // rows of a matrix that share scales
	codes      safetensors.TensorInfo // [matrices, rows, stride]
	scales     safetensors.TensorInfo // [matrices, ceil(rows/high), format.Blocks(cols)]
	nf4        *nf4Absmax             // in place of scales, of codes whose first of two is in the high bits
}

// scaleType is the type in which the device keeps scales of a checkpoint's type exactly.
func scaleType(dtype string) quant.Scale {
	switch dtype {
	case "U8", "F8_E8M0":
		return quant.ScaleE8M0
	case "BF16":
		return quant.ScaleBF16
	}
	return quant.ScaleF32
}

// Scale is that of a row, counted through all matrices, in a block of columns.
func (c *Codes) Scale(row, block int) float32 {
	if c.nf4 != nil {
		return c.nf4.values[(row*c.cols+block*c.Format.Wide)/c.nf4.state.Block]
	}
	down := (c.rows + c.high - 1) / c.high
	i, data := (row/c.rows*down+row%c.rows/c.high)*c.Format.Blocks(c.cols)+block, c.scales.Data
	switch c.scales.DType {
	case "U8", "F8_E8M0":
		return quant.PowerOfTwo(data[i])
	case "BF16":
		return kernels.FromBF16(binary.LittleEndian.Uint16(data[2*i:]))
	case "F32":
		return math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return safetensors.FromF16(binary.LittleEndian.Uint16(data[2*i:]))
}

// row is the codes of a row, counted through all matrices, and of those after it.
func (c *Codes) row(row int) []byte { return c.codes.Data[row*c.stride:] }

// CopyRow copies the codes of a row to a device's row, dst.
func (c *Codes) CopyRow(dst []byte, row int) {
	if c.nf4 != nil {
		quant.SwapNibbles(dst, c.row(row))
		return
	}
	copy(dst, c.row(row))
}

// allRows is the rows of all matrices.
func (c *Codes) allRows() int { return len(c.codes.Data) / max(c.stride, 1) }

// eachScale visits all scales until visit returns false.
func (c *Codes) eachScale(visit func(s float32) bool) bool {
	for row := range c.allRows() {
		if row%c.rows%c.high != 0 {
			continue
		}
		for block := range c.Format.Blocks(c.cols) {
			if !visit(c.Scale(row, block)) {
				return false
			}
		}
	}
	return true
}

// PowersOfTwo tells whether all scales are numbers of E8M0.
func (c *Codes) PowersOfTwo() bool {
	return c.eachScale(func(s float32) bool {
		_, ok := quant.EncodePowerOfTwo(s)
		return ok
	})
}

// Check is an error where a scale or a code is NaN, or where codes decode to more than fp32 holds. It comes before the
// first Scale: absmax that are nested are decoded.
func (c *Codes) Check() error {
	if c.nf4 != nil {
		return c.nf4.read(c.codes)
	}
	var err error
	if scaleType(c.scales.DType) == quant.ScaleE8M0 {
		err = noNaN(c.scales)
	} else {
		_, err = readScales(c.scales)
	}
	if err != nil {
		return err
	}
	if c.Format.Code == quant.CodeE4M3 && slices.ContainsFunc(c.codes.Data, quant.IsNaNE4M3) {
		return fmt.Errorf("%s: tensor %s: codes decode to NaN: fetch the checkpoint again", c.codes.File, c.codes.Name)
	}
	// no code is larger than 448
	if c.eachScale(func(s float32) bool { return !math.IsInf(float64(s*quant.MaxE4M3), 0) }) {
		return nil
	}
	line := make([]float32, c.cols)
	for row := range c.allRows() {
		c.decode(line, row)
		if err := finite(line, c.codes); err != nil {
			return err
		}
	}
	return nil
}

// weight is the numbers, in a shape.
func (c *Codes) weight(shape []int) Weight {
	return Weight{Shape: shape, Codes: c, read: func(dst []float32) error {
		if err := c.Check(); err != nil {
			return err
		}
		InParallel(c.allRows(), 1, func(from, to int) {
			for row := from; row < to; row++ {
				c.decode(dst[row*c.cols:(row+1)*c.cols], row)
			}
		})
		return nil
	}}
}

// decode writes the numbers of a row, products rounded to fp32.
func (c *Codes) decode(line []float32, row int) {
	for block := range c.Format.Blocks(c.cols) {
		at := block * c.Format.Wide
		c.Format.Decode(line[at:min(at+c.Format.Wide, c.cols)], c.row(row), at, c.Scale(row, block))
	}
}
