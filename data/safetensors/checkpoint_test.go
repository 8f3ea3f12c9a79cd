package safetensors

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// folder writes files into a new folder: text as it is, and for each "*.safetensors" a file with the named U8 tensors.
func folder(t *testing.T, texts map[string]string, weights map[string][]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, tensors := range weights {
		var out []OutTensor
		for _, tensor := range tensors {
			out = append(out, bytesTensor(tensor, "U8", []int{3}, []byte(tensor + "123")[:3]))
		}
		if err := Write(filepath.Join(dir, name), out, nil); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestChooseFiles(t *testing.T) {
	for _, c := range []struct {
		names []string
		index string
		files []string
		fails bool
	}{
		{names: []string{"a.safetensors", "model.safetensors", "model.safetensors.index.json"},
			files: []string{"model.safetensors"}},
		{names: []string{"model-00001-of-00002.safetensors", "model.safetensors.index.json", "x.safetensors"},
			index: "model.safetensors.index.json"},
		{names: []string{"adapter_model.safetensors", "golden.safetensors"},
			files: []string{"adapter_model.safetensors"}},
		{names: []string{"adapter_model.safetensors", "model.safetensors"}, files: []string{"model.safetensors"}},
		{names: []string{"config.json", "other.safetensors"}, files: []string{"other.safetensors"}},
		{names: []string{"b.safetensors", "w.safetensors.index.json"}, index: "w.safetensors.index.json"},
		{names: []string{"w-00001-of-00002.safetensors", "w-00002-of-00002.safetensors"},
			files: []string{"w-00001-of-00002.safetensors", "w-00002-of-00002.safetensors"}},
		{names: []string{"w-00001-of-00003.safetensors", "w-00002-of-00003.safetensors"}, fails: true},
		{names: []string{"v-00001-of-00002.safetensors", "w-00002-of-00002.safetensors"}, fails: true},
		{names: []string{"a.safetensors", "b.safetensors"}, fails: true},
		{names: []string{"a.safetensors", "v.safetensors.index.json", "w.safetensors.index.json"}, fails: true},
		{names: []string{"config.json"}, fails: true},
	} {
		index, files, err := chooseFiles(c.names)
		if index != c.index || !slices.Equal(files, c.files) || (err != nil) != c.fails {
			t.Errorf("%v: %q %v %v", c.names, index, files, err)
		}
	}
}

func TestShards(t *testing.T) {
	dir := folder(t, map[string]string{indexName: `{"metadata":{"total_size":6},"weight_map":{"a":"s1.safetensors",` +
		`"b":"s2.safetensors"}}`},
		map[string][]string{"s1.safetensors": {"a"}, "s2.safetensors": {"b"}})
	c, err := OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, ok := c.Tensor("b")
	if !slices.Equal(c.Names(), []string{"a", "b"}) || c.Path() != dir || !ok || string(b.Data) != "b12" ||
		filepath.Base(b.File) != "s2.safetensors" {
		t.Errorf("%v %+v", c.Names(), b)
	}
}

func TestBadIndex(t *testing.T) {
	weights := map[string][]string{"s1.safetensors": {"a"}, "s2.safetensors": {"b"}}
	for _, c := range []struct{ weightMap, want string }{
		{`{"a":"s1.safetensors","b":"s3.safetensors"}`, "s3.safetensors"},
		{`{"a":"s1.safetensors","b":"s1.safetensors"}`, `tensor "b" is not in s1`},
		{`{"a":"s2.safetensors","b":"s1.safetensors"}`, `tensor "a" is not in s2`},
		{`{"b":"s2.safetensors","c":"s1.safetensors"}`, `tensor "c"`},
		{`{"a":"../s1.safetensors"}`, "same folder"},
		{`{"a":"/tmp/s1.safetensors"}`, "same folder"},
		{`{"a":"x\\s1.safetensors"}`, "same folder"},
		{`{"a":"config.json"}`, "same folder"},
		{`{"a":"s\n1.safetensors"}`, "same folder"},
		{`{"a":"s1.safetensors","a":"s2.safetensors"}`, "twice"},
		{`{"a":1}`, "strings"},
		{`{}`, "no weight_map"},
		{`[]`, "JSON object"},
	} {
		dir := folder(t, map[string]string{indexName: fmt.Sprintf(`{"weight_map":%s}`, c.weightMap)}, weights)
		_, err := OpenCheckpoint(dir)
		checkError(t, err, dir, c.want)
	}
}

func TestShardHoldsUnlistedTensor(t *testing.T) {
	dir := folder(t, map[string]string{indexName: `{"weight_map":{"a":"s1.safetensors"}}`},
		map[string][]string{"s1.safetensors": {"a", "b"}})
	_, err := OpenCheckpoint(dir)
	checkError(t, err, indexName, `tensor "b"`, "not listed")
}

func TestTensorInTwoFiles(t *testing.T) {
	dir := folder(t, nil, map[string][]string{"w-00001-of-00002.safetensors": {"a"},
		"w-00002-of-00002.safetensors": {"a"}})
	_, err := OpenCheckpoint(dir)
	checkError(t, err, "w-00002-of-00002.safetensors", `tensor "a"`, "w-00001-of-00002.safetensors")
}

func TestNoFolder(t *testing.T) {
	_, err := OpenCheckpoint(filepath.Join(t.TempDir(), "none"))
	checkError(t, err, "none", "no such folder")
}
