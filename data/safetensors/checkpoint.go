package safetensors

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"lockstep/data/atomicfile"
)

const (
	singleName  = "model.safetensors"
	adapterName = "adapter_model.safetensors" // PEFT's
	indexSuffix = ".safetensors.index.json"
	indexName   = "model" + indexSuffix
	fileSuffix  = ".safetensors"
)

// Checkpoint is the tensors of a folder, from one file or from several.
type Checkpoint struct {
	path    string
	files   []*File
	tensors map[string]TensorInfo
}

func newCheckpoint(path string) *Checkpoint {
	return &Checkpoint{path: path, tensors: map[string]TensorInfo{}}
}

// OpenCheckpoint opens the weights of a folder: model.safetensors; else the shards that model.safetensors.index.json
// names; else adapter_model.safetensors; else the folder's only other set, which is one index, one file, or the files
// NAME-0000i-of-0000N.safetensors of one NAME and all i.
func OpenCheckpoint(dir string) (*Checkpoint, error) {
	listed, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no such folder: check the path of the checkpoint", dir)
	}
	if err != nil {
		return nil, err // names the folder
	}
	var names []string
	for _, e := range listed {
		names = append(names, e.Name())
	}
	index, files, err := chooseFiles(names)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if index != "" {
		return openIndex(dir, index)
	}
	return openFiles(dir, files)
}

// chooseFiles selects an index or a set of files from the sorted names of a folder.
func chooseFiles(names []string) (index string, files []string, err error) {
	if slices.Contains(names, singleName) {
		return "", []string{singleName}, nil
	}
	if slices.Contains(names, indexName) {
		return indexName, nil, nil
	}
	if slices.Contains(names, adapterName) {
		return "", []string{adapterName}, nil
	}
	var indices []string
	for _, name := range names {
		switch {
		case strings.HasSuffix(name, indexSuffix):
			indices = append(indices, name)
		case strings.HasSuffix(name, fileSuffix):
			files = append(files, name)
		}
	}
	switch {
	case len(indices) == 1:
		return indices[0], nil, nil
	case len(indices) == 0 && (len(files) == 1 || wholeSet(files)):
		return "", files, nil
	case len(files) == 0:
		return "", nil, fmt.Errorf("no %s and no other safetensors file: check the path, or convert the weights",
			singleName)
	}
	return "", nil, fmt.Errorf("%s and %d more files, but no %s or %s that says which to read: keep one set", files[0],
		len(files)-1, singleName, indexName)
}

var shardName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.safetensors$`)

// wholeSet reports whether sorted names are the shards 1 to N of one set of N.
func wholeSet(names []string) bool {
	for i, name := range names {
		m, first := shardName.FindStringSubmatch(name), shardName.FindStringSubmatch(names[0])
		if m == nil || m[1] != first[1] || m[2] != fmt.Sprintf("%05d", i+1) || m[3] != fmt.Sprintf("%05d", len(names)) {
			return false
		}
	}
	return len(names) > 0
}

// openFiles opens files of a folder as one checkpoint; a tensor that two of them hold is an error.
func openFiles(dir string, files []string) (*Checkpoint, error) {
	c := newCheckpoint(dir)
	for _, name := range files {
		f, err := Open(filepath.Join(dir, name))
		if err != nil {
			return nil, cmp.Or(err, c.Close())
		}
		c.files = append(c.files, f)
		for _, t := range f.tensors {
			if other, twice := c.tensors[t.Name]; twice {
				err := fmt.Errorf("%s: tensor %q is in %s too: keep one of them", f.path, t.Name,
					filepath.Base(other.File))
				return nil, cmp.Or(err, c.Close())
			}
			c.tensors[t.Name] = t
		}
	}
	return c, nil
}

// openIndex opens the shards of an index and checks that both list the same tensors.
func openIndex(dir, index string) (*Checkpoint, error) {
	path := filepath.Join(dir, index)
	text, err := atomicfile.Read(path)
	if err != nil {
		return nil, err
	}
	weightMap, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	shards := slices.Compact(slices.Sorted(maps.Values(weightMap)))
	c, err := openFiles(dir, shards)
	if err != nil {
		return nil, err
	}
	if err := c.checkIndex(weightMap); err != nil {
		return nil, cmp.Or(fmt.Errorf("%s: %w", path, err), c.Close())
	}
	return c, nil
}

// parseIndex reads the weight_map, {tensor: file}, of an index. Files must lie in the index's own folder.
func parseIndex(text []byte) (weightMap map[string]string, err error) {
	err = eachField(text, func(name string, value json.RawMessage) error {
		if name != "weight_map" {
			return nil // metadata: sizes that the shards themselves say better
		}
		weightMap, err = parseStringMap(value)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(weightMap) == 0 {
		return nil, errors.New("no weight_map: fetch the index again, or remove it if the folder needs none")
	}
	for _, tensor := range slices.Sorted(maps.Keys(weightMap)) {
		file := weightMap[tensor]
		if strings.ContainsAny(file, `/\`) || strings.ContainsFunc(file, unicode.IsControl) ||
			!strings.HasSuffix(file, fileSuffix) {
			return nil, fmt.Errorf("tensor %q is in %q: it must name a .safetensors file of the same folder", tensor,
				file)
		}
	}
	return weightMap, nil
}

func (c *Checkpoint) checkIndex(weightMap map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(weightMap)) {
		t, ok := c.tensors[name]
		if !ok || filepath.Base(t.File) != weightMap[name] {
			return fmt.Errorf("tensor %q is not in %s: fetch the index and its shards again", name, weightMap[name])
		}
	}
	for _, name := range c.Names() {
		if _, ok := weightMap[name]; !ok {
			return fmt.Errorf("tensor %q of %s is not listed: fetch the index and its shards again", name,
				filepath.Base(c.tensors[name].File))
		}
	}
	return nil
}

// Path is the folder, or the file that the checkpoint was made of.
func (c *Checkpoint) Path() string { return c.path }

// Names lists the tensors, sorted.
func (c *Checkpoint) Names() []string { return slices.Sorted(maps.Keys(c.tensors)) }

// Tensor is a tensor by name.
func (c *Checkpoint) Tensor(name string) (TensorInfo, bool) {
	t, ok := c.tensors[name]
	return t, ok
}

// Close closes the files: the Data of the tensors is no more.
func (c *Checkpoint) Close() error {
	var failed error
	for _, f := range c.files {
		failed = cmp.Or(failed, f.Close())
	}
	c.files, c.tensors = nil, nil
	return failed
}
