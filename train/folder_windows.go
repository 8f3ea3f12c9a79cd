package train

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// mayWrite tells whether this process may create files in a folder: by creating one.
func mayWrite(dir string) bool {
	f, err := os.CreateTemp(dir, ".writable")
	if err != nil {
		return false
	}
	return errors.Join(f.Close(), os.Remove(f.Name())) == nil
}

// tryLock locks a file; locked is true where another process holds it.
func tryLock(f *os.File) (locked bool, err error) {
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &windows.Overlapped{})
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION), err
}
