package kernels

import (
	"fmt"
	"unsafe"
)

// DType is a storage format of tensor elements on a device.
type DType uint8

const (
	F32 DType = iota
	BF16
	I32
	U8 // bytes, which only copies and products with a [QuantizedWeight] know
)

// Size is the number of bytes of one element.
func (d DType) Size() int {
	return [...]int{4, 2, 4, 1}[d]
}

func (d DType) String() string {
	return [...]string{"fp32", "bf16", "int32", "uint8"}[d]
}

// Tensor is a view of device memory: Groups matrices of Rows x Cols elements, row r of group g starting at element
// (g*Rows+r)*Stride. A vector is one row; plain matrices have one group. The zero Tensor means "none".
//
// A Tensor does not own memory; an [Arena] does. The typed accessors work on host memory only, as on the CPU device.
type Tensor struct {
	Data   unsafe.Pointer
	DType  DType
	Groups int
	Rows   int
	Cols   int
	Stride int // elements between rows, at least Cols
}

// IsNil reports whether t is the zero Tensor.
func (t Tensor) IsNil() bool { return t.Data == nil }

// Len is the number of elements, padding between rows not counted.
func (t Tensor) Len() int { return t.Groups * t.Rows * t.Cols }

// Contiguous reports whether rows follow each other without gaps.
func (t Tensor) Contiguous() bool { return t.Stride == t.Cols || t.Groups*t.Rows <= 1 }

// Bytes is the number of bytes of a contiguous tensor.
func (t Tensor) Bytes() int { return t.Len() * t.DType.Size() }

// Group is matrix g of a grouped tensor, [Rows, Cols].
func (t Tensor) Group(g int) Tensor {
	if g < 0 || g >= t.Groups {
		panic(fmt.Sprintf("kernels: group %d of %s", g, t))
	}
	t.Data = t.at(g * t.Rows * t.Stride)
	t.Groups = 1
	return t
}

// RowRange is the view of rows [from, to) of a one-group tensor.
func (t Tensor) RowRange(from, to int) Tensor {
	if from < 0 || to < from || to > t.Rows || t.Groups != 1 {
		panic(fmt.Sprintf("kernels: rows %d:%d of %s", from, to, t))
	}
	t.Data = t.at(from * t.Stride)
	t.Rows = to - from
	return t
}

// InterleavedGroup is the view of rows i, i+count, i+2*count, ... of a one-group tensor, [Rows/count, Cols].
func (t Tensor) InterleavedGroup(i, count int) Tensor {
	if i < 0 || i >= count || t.Rows%count != 0 || t.Groups != 1 {
		panic(fmt.Sprintf("kernels: rows %d, %d, ... of %s", i, i+count, t))
	}
	t.Data = t.at(i * t.Stride)
	t.Rows /= count
	t.Stride *= count
	return t
}

// Stacked is rows [from, from+groups*rows) of a one-group tensor as groups matrices [rows, Cols].
func (t Tensor) Stacked(from, groups, rows int) Tensor {
	t = t.RowRange(from, from+groups*rows)
	t.Groups, t.Rows = groups, rows
	return t
}

// ColRange is the view of columns [from, to) of a one-group tensor; the stride stays.
func (t Tensor) ColRange(from, to int) Tensor {
	if from < 0 || to < from || to > t.Cols || t.Groups != 1 {
		panic(fmt.Sprintf("kernels: columns %d:%d of %s", from, to, t))
	}
	t.Data = t.at(from)
	t.Cols = to - from
	return t
}

// Reshape is the same contiguous memory as [rows, cols].
func (t Tensor) Reshape(rows, cols int) Tensor {
	if !t.Contiguous() || rows*cols != t.Len() {
		panic(fmt.Sprintf("kernels: %s as [%d, %d]", t, rows, cols))
	}
	t.Groups, t.Rows, t.Cols, t.Stride = 1, rows, cols, cols
	return t
}

func (t Tensor) at(element int) unsafe.Pointer {
	return unsafe.Add(t.Data, element*t.DType.Size())
}

// F32s is the host memory from the tensor's first element to its last, gaps between rows included; fp32 tensors in host
// memory only.
func (t Tensor) F32s() []float32 {
	t.must(F32)
	return unsafe.Slice((*float32)(t.Data), t.span())
}

// BF16s is like F32s for bf16 tensors: the upper 16 bits of each fp32 value.
func (t Tensor) BF16s() []uint16 {
	t.must(BF16)
	return unsafe.Slice((*uint16)(t.Data), t.span())
}

// I32s is like F32s for int32 tensors.
func (t Tensor) I32s() []int32 {
	t.must(I32)
	return unsafe.Slice((*int32)(t.Data), t.span())
}

// Raw is the host memory of a contiguous tensor as bytes, little-endian elements.
func (t Tensor) Raw() []byte {
	if !t.Contiguous() {
		panic("kernels: Raw of a strided tensor " + t.String())
	}
	if t.Len() == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(t.Data), t.Bytes())
}

func (t Tensor) span() int {
	rows := t.Groups * t.Rows
	if rows == 0 || t.Cols == 0 {
		return 0
	}
	return (rows-1)*t.Stride + t.Cols
}

func (t Tensor) must(d DType) {
	if t.DType != d {
		panic(fmt.Sprintf("kernels: %s read as %s", t, d))
	}
}

func (t Tensor) String() string {
	if t.Groups != 1 {
		return fmt.Sprintf("%s[%d, %d, %d]", t.DType, t.Groups, t.Rows, t.Cols)
	}
	return fmt.Sprintf("%s[%d, %d]", t.DType, t.Rows, t.Cols)
}

// Wrap makes a contiguous [rows, cols] fp32 tensor over host memory that the caller keeps.
func Wrap(x []float32, rows, cols int) Tensor {
	if len(x) != rows*cols {
		panic(fmt.Sprintf("kernels: %d values as [%d, %d]", len(x), rows, cols))
	}
	return Tensor{Data: unsafe.Pointer(unsafe.SliceData(x)), DType: F32, Groups: 1, Rows: rows, Cols: cols,
		Stride: cols}
}

// WrapI32 makes an int32 vector over host memory that the caller keeps.
func WrapI32(x []int32) Tensor {
	return Tensor{Data: unsafe.Pointer(unsafe.SliceData(x)), DType: I32, Groups: 1, Rows: 1, Cols: len(x),
		Stride: len(x)}
}
