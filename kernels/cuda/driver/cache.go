//go:build cuda

package driver

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Object is a compiled source.
type Object struct {
	Kernels []string // names
	Code    []byte   // machine code of one architecture, a cubin
}

// A file of the cache is the SHA-256 of the rest, a line with the names of kernels, and the code.

func (o Object) encode() []byte {
	body := append([]byte(strings.Join(o.Kernels, " ")+"\n"), o.Code...)
	sum := sha256.Sum256(body)
	return append(sum[:], body...)
}

// decode refuses a file that is not what encode wrote.
func decode(file []byte) (o Object, ok bool) {
	if len(file) < sha256.Size {
		return o, false
	}
	sum, body := [sha256.Size]byte(file), file[sha256.Size:]
	names, code, ok := bytes.Cut(body, []byte("\n"))
	if !ok || sha256.Sum256(body) != sum {
		return o, false
	}
	return Object{Kernels: strings.Fields(string(names)), Code: code}, true
}

// cachePath is where the object of a key is kept; "" where the user has no cache folder.
func cachePath(key []byte) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "lockstep", "kernels", hex.EncodeToString(key))
}

// readObject finds an object in the cache. A damaged file is as good as none: it is compiled again and written over.
func readObject(path string) (Object, bool) {
	file, err := os.ReadFile(path)
	if err != nil {
		return Object{}, false
	}
	return decode(file)
}

// storeObject keeps an object for the next start. Without a folder to write to that start compiles again, and nothing
// else is lost.
func storeObject(path string, o Object) {
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), "*.tmp")
	if err != nil {
		return
	}
	_, err = f.Write(o.encode())
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
}
