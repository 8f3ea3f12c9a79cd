// Package safetensors reads and writes tensors in the safetensors format: one file, or a checkpoint folder of shards
// with an index. Files are mapped, checked in full before anything is used, and written whole or not at all. The
// package may import kernels, and data/atomicfile.
package safetensors

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"
)

// TensorInfo is one tensor of a checkpoint. Data is the file's memory, not a copy: it must not be written to, and it is
// gone once the file is closed. Values are little-endian, rows first; Data has no particular alignment.
type TensorInfo struct {
	Name  string
	DType string // the format's name: F32, BF16, F8_E4M3, ...
	Shape []int  // empty for a scalar
	Data  []byte
	File  string // the path it was read from
}

// Len is the number of elements.
func (t TensorInfo) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Forget lets the system take back the pages of the file that the tensor alone lies in: they count as the process's
// until then. Data can be read again.
func (t TensorInfo) Forget() {
	page := uintptr(os.Getpagesize())
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))
	from, to := (begin+page-1)/page*page, (begin+uintptr(len(t.Data)))/page*page
	if from < to {
		forget(t.Data[from-begin : to-begin])
	}
}

// File is one open file, mapped into memory. Cutting the file short while it is open kills the process.
type File struct {
	path     string
	mapped   []byte
	tensors  []TensorInfo // in the order of their data
	metadata map[string]string
}

// Open maps a file and checks all of its header; values are read when they are used.
func Open(path string) (*File, error) {
	mapped, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	h, err := parseSafetensors(mapped)
	if err != nil {
		return nil, cmp.Or(fmt.Errorf("%s: %w", path, err), unmap(path, mapped))
	}
	f := &File{path: path, mapped: mapped, metadata: h.metadata}
	for _, e := range h.entries {
		begin, end := h.dataAt+int(e.begin), h.dataAt+int(e.end)
		f.tensors = append(f.tensors, TensorInfo{Name: e.name, DType: e.dtype, Shape: e.shape,
			Data: mapped[begin:end:end], File: path})
	}
	return f, nil
}

// mapFile maps a regular file for reading.
func mapFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such file: check the path, or fetch the checkpoint again", path)
	}
	if err != nil {
		return nil, err // names the path
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file: give the path of a .safetensors file", path)
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("%s: the file is empty: fetch it again", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	mapped, err := mapping(f, int(info.Size()))
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes: %w", path, info.Size(), err)
	}
	return mapped, nil
}

func unmap(path string, mapped []byte) error {
	if mapped == nil {
		return nil
	}
	if err := unmapBytes(mapped); err != nil {
		return fmt.Errorf("%s: unmap: %w", path, err)
	}
	return nil
}

// Metadata is the file's __metadata__, nil if it has none.
func (f *File) Metadata() map[string]string { return f.metadata }

// Checkpoint is the file seen as a checkpoint of its own. Closing either closes both.
func (f *File) Checkpoint() *Checkpoint {
	c := newCheckpoint(f.path)
	c.files = []*File{f}
	for _, t := range f.tensors {
		c.tensors[t.Name] = t
	}
	return c
}

// Close unmaps the file: the Data of its tensors is no more. Closing twice is harmless.
func (f *File) Close() error {
	mapped := f.mapped
	f.mapped, f.tensors = nil, nil
	return unmap(f.path, mapped)
}
