package train

import (
	"fmt"
	"os"
	"path/filepath"
)

// lockFile is empty: it exists to be locked.
const lockFile = ".lock"

// lockFolder makes this process the only one that trains into a run's folder until the file is closed. The system
// closes the file of a process that was killed.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if locked, err := tryLock(f); err != nil {
		f.Close() // the error that matters came first
		if locked {
			return nil, fmt.Errorf("%s: another process trains in this folder: wait for it or stop it, or give "+
				"another --out", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
