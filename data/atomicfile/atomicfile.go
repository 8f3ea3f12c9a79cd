// Package atomicfile writes files and folders whole or not at all: under a temporary name, synced, then renamed. It
// imports the standard library.
package atomicfile

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
)

// Write writes a file so that path holds, at every moment and after a crash, either what it held before or all of
// what write wrote: to a temporary name in the same folder, synced, renamed, the folder synced. Writes are buffered.
func Write(path string, write func(w io.Writer) error) (err error) {
	if path, err = replaceable(path); err != nil {
		return err
	}
	f, err := createNextTo(path)
	if err != nil {
		return err
	}
	renamed := false
	defer func() { // also when write panics
		if !renamed {
			f.Close() // closed already, or the error that matters came first
			os.Remove(f.Name())
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	if err := write(w); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := cmp.Or(w.Flush(), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	renamed = true
	return SyncDir(filepath.Dir(path))
}

// replaceable is where a new file takes its name: path, or what a symbolic link there leads to. A folder, a device or a
// pipe is refused, for a rename would put a file in its place.
func replaceable(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case path == "":
		return "", errors.New("the output has no name: give the path of a file")
	case err != nil:
		return path, nil // nothing there yet, or what creating it will say
	case info.IsDir():
		return "", fmt.Errorf("write %s: it is a folder: name a file in it", path)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("write %s: it is not a regular file: name one", path)
	}
	return filepath.EvalSymlinks(path)
}

// createNextTo makes a new file next to path, with the permissions that any new file gets.
func createNextTo(path string) (*os.File, error) {
	dir, name := filepath.Split(path)
	for {
		temporary := fmt.Sprintf("%s.%s.%016x.tmp", dir, name, rand.Uint64())
		f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("%s: no folder %s: create it first", path, filepath.Dir(path))
		case !errors.Is(err, fs.ErrExist):
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
	}
}

// SyncDir makes the names in a folder (new, renamed, removed) survive a crash.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // NTFS keeps a journal of names, and a folder cannot be synced
	}
	d, err := os.Open(dir)
	if err != nil {
		return err // names the folder
	}
	return cmp.Or(d.Sync(), d.Close())
}

// Dir writes a folder under a temporary name and renames it once it is complete. Where writing fails, the
// temporary folder is removed, so that a full disk has its space back.
func Dir(dir string, write func(tmp string) error) error {
	tmp := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir))
	err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755))
	if err == nil {
		err = write(tmp)
	}
	if err != nil {
		os.RemoveAll(tmp) // the error that matters came first
		return err
	}
	return replaceDir(tmp, dir)
}

// replaceDir renames a complete folder to its final name, in place of a folder that has that name.
func replaceDir(tmp, final string) error {
	old := final + ".old"
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(final, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return err
	}
	return errors.Join(SyncDir(filepath.Dir(final)), os.RemoveAll(old))
}
