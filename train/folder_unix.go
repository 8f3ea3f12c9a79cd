//go:build unix

package train

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// mayWrite tells whether this process may create files in a folder.
func mayWrite(dir string) bool { return unix.Access(dir, unix.W_OK|unix.X_OK) == nil }

// tryLock locks a file; locked is true where another process holds it.
func tryLock(f *os.File) (locked bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return errors.Is(err, unix.EWOULDBLOCK), err
}
