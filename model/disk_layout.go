package model

import (
	"runtime"
	"sync"

	"lockstep/kernels"
)

// inParallel runs body over [0, n) on all cores, each call on a range that begins at a multiple of grain.
func inParallel(n, grain int, body func(from, to int)) {
	workers := runtime.GOMAXPROCS(0)
	each := (n + workers - 1) / workers
	each = (each + grain - 1) / grain * grain
	var wait sync.WaitGroup
	for from := 0; from < n; from += each {
		wait.Go(func() { body(from, min(from+each, n)) })
	}
	wait.Wait()
}

// eachPlace calls visit for each of n elements, with its index on disk. The elements are rows of cols. Rows are visited
// some at a time, column by column, so that a transposed layout is read and written in cache lines.
func eachPlace(n, cols int, disk func(i int) int, visit func(i, at int)) {
	const together = 32
	inParallel(n/cols, together, func(from, to int) {
		for row := from; row < to; row += together {
			for col := range cols {
				for r := row; r < min(row+together, to); r++ {
					i := r*cols + col
					visit(i, disk(i))
				}
			}
		}
	})
}

// arranged is numbers on disk, rounded to a storage type, in memory's layout of rows of cols.
func arranged(onDisk []float32, d kernels.DType, cols int, disk func(i int) int) []byte {
	size := d.Size()
	raw := make([]byte, size*len(onDisk))
	eachPlace(len(onDisk), cols, disk, func(i, at int) { put(raw[i*size:], d, onDisk[at]) })
	return raw
}

// permuted puts element i, of size bytes in rows of cols, where disk says.
func permuted(raw []byte, size, cols int, disk func(i int) int) []byte {
	out := make([]byte, len(raw))
	eachPlace(len(raw)/size, cols, disk, func(i, at int) { copy(out[at*size:][:size], raw[i*size:]) })
	return out
}

// expertsLast is the layout [rows, cols, groups] on disk of [groups, rows, cols] in memory, rows in an order of their
// own or (nil) the same.
func expertsLast(groups, rows, cols int, order func(row int) int) func(i int) int {
	return func(i int) int {
		group, row, col := i/(rows*cols), i/cols%rows, i%cols
		if order != nil {
			row = order(row)
		}
		return (row*cols+col)*groups + group
	}
}

// rowsOnDisk is the layout of rows of cols elements in another order.
func rowsOnDisk(disk func(row int) int, cols int) func(i int) int {
	return func(i int) int { return disk(i/cols)*cols + i%cols }
}
