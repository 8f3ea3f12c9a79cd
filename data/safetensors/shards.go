package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"lockstep/data/atomicfile"
)

// WriteCheckpoint writes model.safetensors into a folder, or, if the values take more than maxShardBytes, the shards
// model-0000i-of-0000N.safetensors and then model.safetensors.index.json. Tensors fill shards in the given order; one
// that is larger than a shard gets a shard of its own. maxShardBytes 0 means one file.
//
// One file replaces the one of an earlier save. Shards never do, because a crash could leave a mix: the folder must
// hold no other weights.
func WriteCheckpoint(dir string, tensors []OutTensor, maxShardBytes int64, metadata map[string]string) error {
	shards, total, err := cutShards(tensors, maxShardBytes)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if err := checkNoOtherWeights(dir, len(shards)); err != nil {
		return err
	}
	if len(shards) == 1 {
		return Write(filepath.Join(dir, singleName), tensors, metadata)
	}
	weightMap := map[string]string{}
	for i, shard := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d%s", i+1, len(shards), fileSuffix)
		for _, t := range shard {
			if _, twice := weightMap[t.Name]; twice {
				return fmt.Errorf("%s: tensor %q occurs twice: rename one", dir, t.Name)
			}
			weightMap[t.Name] = name
		}
		if err := Write(filepath.Join(dir, name), shard, metadata); err != nil {
			return err
		}
	}
	return writeIndex(filepath.Join(dir, indexName), total, weightMap)
}

// cutShards splits tensors in order; there is always at least one shard.
func cutShards(tensors []OutTensor, limit int64) (shards [][]OutTensor, total uint64, err error) {
	from, filled := 0, uint64(0)
	for i, t := range tensors {
		size, err := safetensorsBytes(t.DType, t.Shape)
		if err != nil {
			return nil, 0, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if limit > 0 && i > from && filled+size > uint64(limit) {
			shards = append(shards, tensors[from:i])
			from, filled = i, 0
		}
		filled += size
		total += size
	}
	return append(shards, tensors[from:]), total, nil
}

// checkNoOtherWeights refuses a folder whose files would be read instead of, or mixed with, the ones about to be
// written.
func checkNoOtherWeights(dir string, shards int) error {
	listed, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no such folder: create it first", dir)
	}
	if err != nil {
		return err // names the folder
	}
	for _, e := range listed {
		name := e.Name()
		replaced := shards == 1 && name == singleName
		ours := name == singleName || name == indexName || strings.HasPrefix(name, "model-") &&
			shardName.MatchString(name)
		if ours && !replaced {
			return fmt.Errorf("%s: holds %s of another save: remove it, or give an empty folder", dir, name)
		}
	}
	return nil
}

func writeIndex(path string, total uint64, weightMap map[string]string) error {
	index := map[string]any{"metadata": map[string]uint64{"total_size": total}, "weight_map": weightMap}
	return atomicfile.Write(path, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(index)
	})
}
