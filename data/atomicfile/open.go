package atomicfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Open opens a regular file for reading. A pipe, which might never have a writer, a device, which might never end, and
// a folder are errors.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is a folder: give a file")}
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("is not a regular file: give one")}
	}
	return os.Open(path)
}

// Read is what a regular file holds, at most a GiB.
func Read(path string) ([]byte, error) {
	const most = 1 << 30
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > most {
		return nil, fmt.Errorf("read %s: has %d bytes, want at most %d", path, info.Size(), most)
	}
	text := make([]byte, info.Size())
	n, err := io.ReadFull(f, text)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read %s: it has become shorter: %w", path, err)
	}
	return text[:n], nil
}
