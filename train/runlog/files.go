package runlog

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"lockstep/data/atomicfile"
)

// ShapeFile is the resolved shape, as TOML. A folder that has it holds a run.
const ShapeFile = "shape.toml"

// HasRun tells whether a folder holds a run, finished or not.
func HasRun(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, ShapeFile))
	return err == nil
}

// WriteFile replaces a file in one rename: readers find it complete or as it was.
func WriteFile(path string, text []byte) error {
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// WriteJSON replaces a file, as [WriteFile] does, by a value as indented JSON.
func WriteJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return WriteFile(path, append(text, '\n'))
}
