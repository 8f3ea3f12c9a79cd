//go:build cuda

package driver

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"lockstep/kernels"
)

// here is a folder of one module and one header; the module has other code by another definition of 2^x.
var here = Sources{fstest.MapFS{
	"half.cuh": {Data: []byte("#ifdef EXP2_EX2H\n#define HALF 0.5f\n#else\n#define HALF 0.25f\n#endif\n")},
	"half.cu": {Data: []byte("#include \"half.cuh\"\n" +
		"extern \"C\" __global__ void half_f32(float *x) { x[threadIdx.x] *= HALF; }\n" +
		"extern \"C\" __global__ void half_i32(int *x) { x[threadIdx.x] /= 2; }\n")},
}}

// cached compiles one source into an empty cache and returns its only file.
func cached(t *testing.T) (o Object, path string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	o, err := Compile(here, "half.cu", "sm_90a", kernels.Default())
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "lockstep", "kernels", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the cache holds %q (%v)", files, err)
	}
	return o, files[0]
}

func TestCompiled(t *testing.T) {
	o, path := cached(t)
	want := []string{"half_f32", "half_i32"}
	for _, name := range want {
		if !bytes.Contains(o.Code, []byte(name)) {
			t.Errorf("no kernel %s in the code", name)
		}
	}
	if len(o.Kernels) != len(want) || !bytes.HasPrefix(o.Code, []byte("\x7fELF")) {
		t.Errorf("kernels %q, code begins with %q", o.Kernels, o.Code[:4])
	}
	// What lies in the cache is taken, not compiled.
	planted := Object{Kernels: []string{"planted"}, Code: []byte("code\nof two lines")}
	if err := os.WriteFile(path, planted.encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Compile(here, "half.cu", "sm_90a", kernels.Default()); err != nil ||
		!reflect.DeepEqual(got, planted) {
		t.Errorf("the cache holds %+v, got %+v (%v)", planted, got, err)
	}
	ex2h := kernels.Default()
	ex2h.Exp2 = kernels.Exp2Ex2h
	if other, err := Compile(here, "half.cu", "sm_90a", ex2h); err != nil || bytes.Equal(other.Code, o.Code) ||
		len(other.Kernels) != len(want) {
		t.Errorf("another exp2: kernels %q (%v)", other.Kernels, err)
	}
	if other, err := Compile(here, "half.cu", "sm_100a", kernels.Default()); err != nil ||
		bytes.Equal(other.Code, o.Code) || len(other.Kernels) != len(want) {
		t.Errorf("another architecture: kernels %q (%v)", other.Kernels, err)
	}
}

func TestDamagedCache(t *testing.T) {
	o, path := cached(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, damaged := range map[string][]byte{"empty": nil, "short": whole[:20], "cut": whole[:len(whole)-1],
		"flipped": flipped} {
		if err := os.WriteFile(path, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := Compile(here, "half.cu", "sm_90a", kernels.Default())
		if err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("%s: another object, or %v", name, err)
		}
		if mended, err := os.ReadFile(path); err != nil || !bytes.Equal(mended, whole) {
			t.Errorf("%s: the file is not mended (%v)", name, err)
		}
	}
}

// A cache that cannot be written costs time only.
func TestNoCache(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", file)
	if _, err := Compile(here, "half.cu", "sm_90a", kernels.Default()); err != nil {
		t.Error(err)
	}
}

// A header counts for the sources that include it, at first or second hand, and for no other.
func TestOwnHeaders(t *testing.T) {
	with := func(file, text string) Sources {
		files := fstest.MapFS{
			"third.cuh":  {Data: []byte("#define THIRD 3\n")},
			"second.cuh": {Data: []byte(" # include \"third.cuh\"\n")},
			"other.cuh":  {Data: []byte("#define OTHER 1\n")},
			"times.cu": {Data: []byte("#include \"second.cuh\"\n" +
				"extern \"C\" __global__ void times(int *x) { x[threadIdx.x] *= THIRD; }\n")},
		}
		if file != "" {
			files[file] = &fstest.MapFile{Data: []byte(text)}
		}
		return Sources{files}
	}
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	for _, c := range []struct {
		file, text string
		objects    int // in the cache
	}{
		{"", "", 1}, {"other.cuh", "#define OTHER 2\n", 1}, {"new.cuh", "", 1}, {"third.cuh", "#define THIRD 4\n", 2},
	} {
		if _, err := Compile(with(c.file, c.text), "times.cu", "sm_90a", kernels.Default()); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "lockstep", "kernels", "*"))
		if err != nil || len(files) != c.objects {
			t.Errorf("%q: the cache holds %d objects, want %d (%v)", c.file, len(files), c.objects, err)
		}
	}
	_, err := Compile(with("second.cuh", "#include \"gone.cuh\"\n"), "times.cu", "sm_90a", kernels.Default())
	if err == nil || !strings.Contains(err.Error(), "times.cu: gone.cuh: ") {
		t.Errorf("a header that is not there: %v", err)
	}
}

// Prepare leaves in the cache what Open reads, or says that it can't.
func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	folder, objects, err := Prepare(here, "sm_90a", kernels.Default())
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(folder)
	if err != nil || len(files) != 2 || objects != 2 { // the driver has one source of its own
		t.Errorf("%d files of %d objects in %s (%v)", len(files), objects, folder, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", file)
	if _, _, err := Prepare(here, "sm_90a", kernels.Default()); err == nil ||
		!strings.Contains(err.Error(), "set XDG_CACHE_HOME") {
		t.Errorf("a cache that can't be written: %v", err)
	}
}
