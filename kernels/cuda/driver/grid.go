//go:build cuda

package driver

import (
	"fmt"

	"lockstep/kernels"
)

// Grids and shapes of launches that operations share.

const (
	ElementThreads = 256 // of blocks whose threads have eight columns each
	WarpThreads    = 256 // of blocks whose warps have a row each
)

// Blocks is how many pieces of a size cover n.
func Blocks(n, size int) int { return (n + size - 1) / size }

// ElementGrid is a grid of a thread for eight columns of each row, in blocks of ElementThreads.
func ElementGrid(rows, cols int) [3]int {
	return [3]int{Blocks(rows*Blocks(cols, 8), ElementThreads), 1, 1}
}

// WarpGrid is a grid of a warp for each row, in blocks of WarpThreads.
func WarpGrid(rows int) [3]int { return [3]int{Blocks(rows, WarpThreads/32), 1, 1} }

// PartGrid is a grid of a warp for each part of so many columns of each row of matrices side by side, in blocks of
// WarpThreads.
func PartGrid(columns, rows int, cols ...int) [3]int {
	grid := WarpGrid(rows)
	grid[1] = 0
	for _, c := range cols {
		grid[1] += Blocks(c, columns)
	}
	return grid
}

// Flat gives the shape of matrices that are contiguous as one row of as many columns as an int32 holds.
func Flat(ts ...kernels.Tensor) (rows, cols int) {
	rows, cols = ts[0].Groups*ts[0].Rows, ts[0].Cols
	contiguous := rows*cols < 1<<31
	for _, t := range ts {
		contiguous = contiguous && t.Contiguous()
	}
	if contiguous {
		rows, cols = 1, rows*cols
	}
	return rows, cols
}

// Suffix names the variant of a kernel for a storage type.
func Suffix(t kernels.Tensor) string {
	if t.DType == kernels.BF16 {
		return "_bf16"
	}
	return "_f32"
}

// Aligned16 reports whether every row of t starts at a multiple of 16 bytes.
func Aligned16(t kernels.Tensor) bool { return uintptr(t.Data)%16 == 0 && t.Stride%8 == 0 }

// MustBF16 panics on a tensor of another type.
func MustBF16(ts ...kernels.Tensor) {
	for _, t := range ts {
		if t.DType != kernels.BF16 {
			panic(fmt.Sprintf("cuda: tensor cores multiply bf16, not %s", t))
		}
	}
}
