package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/data/atomicfile"
)

func bytesTensor(name, dtype string, shape []int, value []byte) OutTensor {
	return OutTensor{Name: name, DType: dtype, Shape: shape, Write: func(w io.Writer) error {
		for i := range value { // in many calls
			if _, err := w.Write(value[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}}
}

func sampleTensors() []OutTensor {
	return []OutTensor{
		bytesTensor("z \"<ü>\"", "U8", []int{3}, []byte("abc")),
		bytesTensor("b", "BF16", []int{1, 2}, []byte("1234")),
		bytesTensor("a", "BF16", []int{2}, []byte("5678")),
		bytesTensor("scalar", "F32", nil, []byte("wxyz")),
		bytesTensor("none", "F64", []int{0, 5}, nil),
	}
}

func TestWriteRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	metadata := map[string]string{"format": "pt", "a": "\n<ü>"}
	if err := Write(path, sampleTensors(), metadata); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := binary.LittleEndian.Uint64(first); (8+n)%safetensorsAlign != 0 {
		t.Errorf("data begins at %d", 8+n)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var order []string
	for _, info := range f.tensors {
		order = append(order, info.Name+"="+string(info.Data))
	}
	if want := []string{"none=", "scalar=wxyz", "a=5678", "b=1234", "z \"<ü>\"=abc"}; !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
	if f.Metadata()["a"] != metadata["a"] || len(f.Metadata()) != 2 {
		t.Errorf("metadata %v", f.Metadata())
	}
	reversed := sampleTensors()
	slices.Reverse(reversed)
	if err := Write(path, reversed, metadata); err != nil { // replaces an open file
		t.Fatal(err)
	}
	if second, err := os.ReadFile(path); err != nil || !bytes.Equal(first, second) {
		t.Errorf("another order gave other bytes (%v)", err)
	}
}

// A failed write leaves what was there, and nothing next to it.
func TestWriteFailures(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := OutTensor{Name: "t", DType: "U8", Shape: []int{1}, Write: func(io.Writer) error {
		return errors.New("no device")
	}}
	for _, c := range []struct {
		tensors []OutTensor
		want    []string
	}{
		{[]OutTensor{broken}, []string{path, `"t"`, "no device"}},
		{[]OutTensor{bytesTensor("t", "U8", []int{2}, []byte("a"))}, []string{path, `"t"`, "1 bytes"}},
		{[]OutTensor{bytesTensor("t", "U8", []int{2}, []byte("abc"))}, []string{path, `"t"`, "3 bytes"}},
		{[]OutTensor{bytesTensor("t", "F9", nil, nil)}, []string{path, `"t"`, `"F9"`}},
		{[]OutTensor{bytesTensor("t", "U8", []int{-1}, nil)}, []string{path, `"t"`, "[-1]"}},
		{[]OutTensor{bytesTensor("__metadata__", "U8", nil, []byte("a"))}, []string{path, "__metadata__"}},
		{[]OutTensor{bytesTensor("t", "U8", nil, []byte("a")), bytesTensor("t", "U8", nil, []byte("a"))},
			[]string{path, `"t"`, "taken"}},
		{[]OutTensor{bytesTensor("\xff", "U8", nil, []byte("a"))}, []string{path, "UTF-8"}},
	} {
		checkError(t, Write(path, c.tensors, nil), c.want...)
	}
	listed, err := os.ReadDir(dir)
	if text, _ := os.ReadFile(path); err != nil || len(listed) != 1 || string(text) != "old" {
		t.Errorf("left %v, %q (%v)", listed, text, err)
	}
	checkError(t, Write(filepath.Join(dir, "none", "x"), nil, nil), "none", "create it first")
}

func TestAtomicFileCleansUpAfterPanic(t *testing.T) {
	dir := t.TempDir()
	func() {
		defer func() { _ = recover() }()
		_ = atomicfile.Write(filepath.Join(dir, "x"), func(io.Writer) error { panic("bug") })
	}()
	if listed, err := os.ReadDir(dir); err != nil || len(listed) != 0 {
		t.Errorf("left %v (%v)", listed, err)
	}
}

func TestWriteCheckpoint(t *testing.T) {
	for _, c := range []struct {
		limit int64
		files string
	}{
		{0, "model.safetensors"},
		{15, "model.safetensors"},
		{8, "model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json"},
		{1, "model-00001-of-00005.safetensors model-00002-of-00005.safetensors model-00003-of-00005.safetensors " +
			"model-00004-of-00005.safetensors model-00005-of-00005.safetensors model.safetensors.index.json"},
	} {
		dir := t.TempDir()
		if err := WriteCheckpoint(dir, sampleTensors(), c.limit, map[string]string{"format": "pt"}); err != nil {
			t.Fatal(err)
		}
		listed, err := filepath.Glob(filepath.Join(dir, "*"))
		if got := strings.ReplaceAll(strings.Join(listed, " "), dir+"/", ""); err != nil || got != c.files {
			t.Errorf("limit %d: %s", c.limit, got)
		}
		ckpt, err := OpenCheckpoint(dir)
		if err != nil {
			t.Fatal(err)
		}
		scalar, _ := ckpt.Tensor("scalar")
		if len(ckpt.Names()) != 5 || string(scalar.Data) != "wxyz" {
			t.Errorf("limit %d: %v %+v", c.limit, ckpt.Names(), scalar)
		}
		ckpt.Close()
		err = WriteCheckpoint(dir, sampleTensors(), c.limit, nil)
		if single := c.files == singleName; single && err != nil {
			t.Errorf("limit %d: one file must replace one file: %v", c.limit, err)
		} else if !single {
			checkError(t, err, dir, "another save")
		}
	}
}

func TestIndexTotalSize(t *testing.T) {
	dir := t.TempDir()
	if err := WriteCheckpoint(dir, sampleTensors(), 8, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, indexName))
	if err != nil {
		t.Fatal(err)
	}
	var index struct {
		Metadata struct {
			TotalSize int `json:"total_size"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(text, &index); err != nil || index.Metadata.TotalSize != 15 {
		t.Errorf("total_size %d (%v)", index.Metadata.TotalSize, err)
	}
}

func TestWriteCheckpointFailures(t *testing.T) {
	checkError(t, WriteCheckpoint(filepath.Join(t.TempDir(), "none"), nil, 0, nil), "none", "create it first")
	dir := t.TempDir()
	twice := []OutTensor{bytesTensor("t", "U8", nil, []byte("a")), bytesTensor("t", "U8", nil, []byte("a"))}
	checkError(t, WriteCheckpoint(dir, twice, 1, nil), dir, `"t"`, "twice")
}
