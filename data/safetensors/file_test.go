package safetensors

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rawFile is a safetensors file of a header as given and of n data bytes.
func rawFile(head string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = append(b, head...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

func writeTemp(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkError wants one line that names every one of the parts.
func checkError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
}

// The file was written by the reference library; the values were read from it by another program.
func TestReferenceFile(t *testing.T) {
	f, err := Open("testdata/adapter.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := f.Checkpoint()
	if len(c.Names()) != 20 || !slices.IsSorted(c.Names()) || f.Metadata()["format"] != "pt" {
		t.Fatalf("%d names, metadata %v", len(c.Names()), f.Metadata())
	}
	name := "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
	info, ok := c.Tensor(name)
	if !ok || info.DType != "F32" || !slices.Equal(info.Shape, []int{32, 4}) || info.File != f.path {
		t.Fatalf("%v %+v", ok, info)
	}
	values := make([]float32, info.Len())
	if err := ToF32(values, info); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	if values[0] != -0x1.3d36d8p-5 || values[1] != 0x1.a9b18ep-6 || sum != 0x1.cf94516ep-1 {
		t.Errorf("values %x %x, sum %x", values[0], values[1], sum)
	}
	if _, ok := c.Tensor("other"); ok {
		t.Error("a tensor that is not there was found")
	}
}

func TestEveryDType(t *testing.T) {
	for dtype, width := range safetensorsBits {
		head := fmt.Sprintf(`{"t":{"dtype":%q,"shape":[2,4],"data_offsets":[0,%d]}}   `, dtype, width)
		f, err := Open(writeTemp(t, "x.safetensors", rawFile(head, int(width))))
		if err != nil {
			t.Fatalf("%s: %v", dtype, err)
		}
		if got := f.tensors[0]; uint64(len(got.Data)) != width || got.Len() != 8 {
			t.Errorf("%s: %d bytes, %d elements", dtype, len(got.Data), got.Len())
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestScalarsAndEmptyTensors(t *testing.T) {
	head := `{"b":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[3,0],"data_offsets":[0,` +
		`0]},"__metadata__":{}}`
	f, err := Open(writeTemp(t, "x.safetensors", rawFile(head, 4)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ts := f.tensors; ts[0].Name != "a" || ts[0].Len() != 0 || ts[1].Len() != 1 || len(ts[1].Data) != 4 {
		t.Errorf("%+v", ts)
	}
}

func TestDamagedFiles(t *testing.T) {
	one := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"t":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	two := func(a, b string) string {
		return fmt.Sprintf(`{"a":{"dtype":"U8","shape":[4],"data_offsets":%s},"b":{"dtype":"U8","shape":[4],`+
			`"data_offsets":%s}}`, a, b)
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"short", []byte("1234567"), "truncated"},
		{"cap", append(binary.LittleEndian.AppendUint64(nil, maxSafetensorsHeader+1), 0), "the format allows"},
		{"huge", append(binary.LittleEndian.AppendUint64(nil, 1<<63), 0), "the format allows"},
		{"truncated header", rawFile("{}", 0)[:9], "truncated"},
		{"empty header", rawFile("", 0), "JSON object"},
		{"white space first", rawFile(" {}", 0), "JSON object"},
		{"not UTF-8", rawFile("{\"\xff\":1}", 0), "UTF-8"},
		{"open object", rawFile(`{"t":{}`, 0), "tensor"},
		{"no value", rawFile(`{"t"}`, 0), "JSON"},
		{"text after", rawFile(`{}x`, 0), "closing brace"},
		{"tensor twice", rawFile(`{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":1}`, 1),
			`"t" occurs twice`},
		{"field twice", rawFile(`{"t":{"dtype":"U8","dtype":"U8"}}`, 0), "twice"},
		{"other field", rawFile(`{"t":{"Dtype":"U8"}}`, 0), "no such field"},
		{"missing field", rawFile(`{"t":{"dtype":"U8","shape":[]}}`, 0), "data_offsets"},
		{"no shape", rawFile(`{"t":{"dtype":"U8","data_offsets":[0,1]}}`, 1),
			"it needs dtype, shape and two data_offsets"},
		{"no dtype", rawFile(`{"t":{"shape":[1],"data_offsets":[0,1]}}`, 1),
			"it needs dtype, shape and two data_offsets"},
		{"one offset", rawFile(one(`"U8"`, `[1]`, `[1]`), 1), "data_offsets"},
		{"unknown dtype", rawFile(one(`"F12"`, `[1]`, `[0,1]`), 1), `"F12"`},
		{"dtype null", rawFile(one(`null`, `[1]`, `[0,1]`), 1), "not a string"},
		{"shape null", rawFile(one(`"U8"`, `null`, `[0,1]`), 1), "not a list"},
		{"many dimensions", rawFile(one(`"U8"`, `[1`+strings.Repeat(",1", 64)+`]`, `[0,1]`), 1),
			"65 dimensions, 64 are"},
		{"shape of null", rawFile(one(`"U8"`, `[null]`, `[0,0]`), 0), "whole numbers"},
		{"quoted number", rawFile(one(`"U8"`, `["1"]`, `[0,1]`), 1), "whole numbers"},
		{"negative", rawFile(one(`"U8"`, `[-1]`, `[0,1]`), 1), "whole numbers"},
		{"exponent", rawFile(one(`"U8"`, `[1e0]`, `[0,1]`), 1), "whole numbers"},
		{"overflow", rawFile(one(`"F32"`, `[4294967296,4294967296]`, `[0,0]`), 0), "too many elements"},
		{"large dimension", rawFile(one(`"F32"`, `[18446744073709551615]`, `[0,0]`), 0), "too large"},
		{"part of a byte", rawFile(one(`"F4"`, `[3]`, `[0,2]`), 2), "inside a byte"},
		{"size", rawFile(one(`"F32"`, `[2]`, `[0,4]`), 4), "8 bytes of F32"},
		{"larger than its shape", rawFile(one(`"F32"`, `[1]`, `[0,8]`), 8), "for 4 bytes of F32 [1]"},
		{"backwards", rawFile(one(`"F32"`, `[1]`, `[4,0]`), 4), "data_offsets [4, 0]"},
		{"hole", rawFile(two("[0,4]", "[5,9]"), 9), `tensor "b" begins at 5`},
		{"overlap", rawFile(two("[0,4]", "[3,7]"), 7), `tensor "b" begins at 3`},
		{"hole in front", rawFile(two("[1,5]", "[5,9]"), 9), `tensor "a" begins at 1`},
		{"truncated data", rawFile(two("[0,4]", "[4,8]"), 7), `tensor "b" ends at 8`},
		{"trailing data", rawFile(two("[0,4]", "[4,8]"), 9), "1 bytes after"},
		{"metadata number", rawFile(`{"__metadata__":{"a":1}}`, 0), "strings only"},
		{"metadata list", rawFile(`{"__metadata__":[]}`, 0), metadataKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := writeTemp(t, "bad.safetensors", c.file)
			_, err := Open(path)
			checkError(t, err, path, c.want)
		})
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "none"))
	checkError(t, err, "none", "no such file")
	_, err = Open(dir)
	checkError(t, err, dir, "regular file")
	_, err = Open(writeTemp(t, "empty", nil))
	checkError(t, err, "empty")
}
