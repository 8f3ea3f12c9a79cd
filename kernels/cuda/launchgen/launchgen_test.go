package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	gotoken "go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// from reads files that are given as name, text, name, text.
func from(files ...string) func(string) (string, error) {
	return func(name string) (string, error) {
		for i := 0; i < len(files); i += 2 {
			if files[i] == name {
				return files[i+1], nil
			}
		}
		return "", fmt.Errorf("open %s: %w", name, os.ErrNotExist)
	}
}

// generated is the Go code for one source.
func generated(source string, mentioned ...string) (string, error) {
	u, err := parse("op.cu", from("op.cu", source))
	if err != nil {
		return "", err
	}
	families, err := group([]*unit{u})
	if err != nil {
		return "", err
	}
	all := map[string]bool{}
	for _, m := range mentioned {
		all[m] = true
	}
	text, err := emit("ops", []*unit{u}, families, all)
	return string(text), err
}

func TestPreprocess(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{"#define F(a, b) a##_##b + a\nF(x, y)", "x_y + x"},
		{"#define A B\n#define B A 1\nA", "A 1"},
		{"#define P(T) (T* out)\n#define K(name, p) void name p(float);\nK(f, P)", "void f ( float * out ) ;"},
		{"#define V(name, ...) name(__VA_ARGS__)\nV(f, int a, int b) V(g)", "f ( int a , int b ) g ( )"},
		{"#define E() 1\nE() E", "1 E"},
		{"#define S(x) #x\nS(a b)", `"a b"`},
		{"#define LONG(a) \\\n  a \\\n  // ends here\nLONG(1) /* and\n more */ 2", "1 2"},
		{"#define F(a) a(2)\n#define G(a) a * a\nF(G)", "2 * 2"},
		{"#ifdef X\n1\n#elif defined(Y) && !defined(X)\n2\n#else\n3\n#endif", "3"},
		{"#if defined(__CUDA_ARCH_FEAT_SM90_ALL)\nwgmma\n#else\nmma\n#endif", "wgmma"},
		{"#if defined X || !defined(X)\n1\n#endif\n#ifndef X\n2\n#endif", "1 2"},
		{"#ifdef X\n#ifdef Y\n1\n#else\n2\n#endif\n#endif\n3", "3"},
		{"#define X 1\n#undef X\nX", "X"},
		{"#pragma unroll\n1'000u \"a // b\" 'c'", `1'000u "a // b" 'c'`},
		{"#include \"h.cuh\"\n#include \"h.cuh\"\nONE", "int x ; 1"},
	} {
		p, err := preprocess("op.cu", from("op.cu", c.source, "h.cuh", "#pragma once\n#define ONE 1\nint x;"))
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
		} else if got := join(p.out); got != c.want {
			t.Errorf("%s: %s, want %s", c.source, got, c.want)
		}
	}
}

// What launchgen cannot read is an error with file and line.
func TestErrors(t *testing.T) {
	const kernel = "extern \"C\" __global__ void f(%s) {}"
	for _, c := range []struct{ source, want string }{
		{"\nKERNEL(f, int n) {}", "op.cu:2: KERNEL begins no declaration"},
		{"__global__ void f() {}", `op.cu:1: kernel without extern "C"`},
		{"extern \"C\" int f();", `op.cu:1: extern "C" of no __global__`},
		{"extern \"C\" __global__ int f() {}", `op.cu:1: kernel: "int" is not supported`},
		{fmt.Sprintf(kernel, "bool b"), "op.cu:1: b has the type bool"},
		{fmt.Sprintf(kernel, "\n\nint (*x)[3]"), "op.cu:1: parameter or field"},
		{fmt.Sprintf(kernel, "int& n"), "op.cu:1: parameter or field"},
		{fmt.Sprintf(kernel, "float** x"), "op.cu:1: parameter or field"},
		{fmt.Sprintf(kernel, "int"), "without a type or a name"},
		{fmt.Sprintf(kernel, "int n = 3"), "op.cu:1: parameter or field"},
		{fmt.Sprintf(kernel, "Lists l"), "op.cu:1: l has the type Lists"},
		{"struct S {\n  int n : 3;\n};\n" + fmt.Sprintf(kernel, "S s"), "op.cu:2: parameter or field"},
		{"struct S {\n  int n[kN];\n};\n" + fmt.Sprintf(kernel, "S s"), "op.cu:2: kN is no constant"},
		{"struct S {\n  union { int n; } u;\n};\n" + fmt.Sprintf(kernel, "S s"), "op.cu:2:"},
		{"struct S {\n  S s;\n};\n" + fmt.Sprintf(kernel, "S s"), "op.cu:2: struct S has itself"},
		{"struct S { void f(); };\n" + fmt.Sprintf(kernel, "S s"), "op.cu:1:"},
		{"struct alignas(12) S { int n; };", "op.cu:1: alignas(12)"},
		{"struct S { int n; }", "op.cu:1: struct S: want ;"},
		{"#define F(a) a\nF(1, 2)", "op.cu:2: macro F takes 1 arguments, not 2"},
		{"#define F(a) a\n\nF(1", "op.cu:3: macro F: arguments without an end"},
		{"#define F(a) a ## +\nF(b)", "op.cu:2: macro F: b ## + is no token"},
		{"#define F(a) a##b\nF()", "op.cu:2: macro F: an empty argument next to ##"},
		{"#define F(a) ## a\n", "op.cu:1: macro F: ## joins nothing"},
		{"#if 1 + 1\n#endif", "op.cu:1: #if: want defined(NAME)"},
		{"\n#ifdef X", "op.cu:2: #if without an #endif"},
		{"#else", "op.cu:1: #else without an #if"},
		{"#error no", "op.cu:1: directive #error"},
		{"#include \"none.cuh\"", "op.cu:1: open none.cuh"},
		{"#include <cuda.h>", "op.cu:1: want #include"},
		{"int x;\n/*", "op.cu:2: comment without an end"},
		{"\n\"abc", "op.cu:2: string without an end"},
		{"__device__ void f() {", "op.cu:1: { without an end"},
		{"//launch:family f", "op.cu:1: want //launch:family NAME PREFIX..."},
		{"//launch:family f g_\n" + fmt.Sprintf(kernel, ""), "op.cu:1: no kernel begins with g_"},
		{fmt.Sprintf(kernel, "") + "\n" + fmt.Sprintf(kernel, ""), "op.cu:2: kernel f is declared in op.cu:1 already"},
		{"extern \"C\" __global__ void a(int n) {}\nextern \"C\" __global__ void b(int n) {}",
			"op.cu:1: kernels a and b have one parameter list and no prefix"},
		{"extern \"C\" __global__ void f_32(int n) {}\nextern \"C\" __global__ void f_64(float n) {}",
			"op.cu:2: kernels f_64 and f_32 (op.cu:1) differ in their parameters"},
	} {
		if _, err := generated(c.source); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.source, err, c.want)
		}
	}
}

const sample = `
typedef unsigned short u16;
constexpr int kTile = 4 * (1 << 3), kMost = kTile / 2 - 1;
constexpr float kHalf = 0.5f;
constexpr int twice(int n) { return 2 * n; }
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
template <class T, int N> struct Other { T x[N]; };
struct Row { int at, count; __device__ int end() const { return at + count; } };
struct Maps {
  static constexpr int kNone = 0;
  TensorMap a, b[2];
  const Row* rows;
  const u16 *x, *y;
  int n[kMost], last;  // 15 and 1
  long long wide;
  __device__ bool has(int i) const { return i < n[0]; }
};
#define OP(T, suffix) \
  extern "C" __global__ void __launch_bounds__(256, twice(1)) op##suffix(T* out, const T* x, const float* w, \
      int page_rows, long long n, float eps, const Row* rows) {}
OP(float, _f32)
OP(u16, _bf16)
extern "C" __global__ void op_many(const __grid_constant__ Maps maps, int first, double type, const int* range) {}
//launch:family walk up_ down_
extern "C" __global__ void up_32(float* x) {}
extern "C" __global__ void down_32(float* x) {}
`

func TestEmit(t *testing.T) {
	text, err := generated(sample, "opTile", "opMost", "kernelUp32")
	if err != nil {
		t.Fatal(err)
	}
	if err := compiles(text); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, want := range []string{
		"opMost = 15", "opTile = 32", `kernelUp32 = "up_32"`,
		"func launchOp[P1, P2, P3 driver.Operand](ctx *driver.Context, variant string, grid [3]int, threads, " +
			"sharedBytes int,",
		"out P1, x P2, w P3, pageRows, n int, eps float32, rows driver.Array[opRow]) {",
		"x: driver.At(x), w: driver.AtType(w, kernels.F32), pageRows: driver.Int32(pageRows), n: int64(n),",
		`ctx.Launch("op"+variant, grid, threads, sharedBytes, driver.Bytes(&params)[:56])`,
		"threads, sharedBytes int, maps *opMaps,\n\tfirst int, type_ float64, range_ P1) {",
		`ctx.Launch("op_many", grid, threads, sharedBytes, driver.Bytes(&params)[:`,
		"func launchWalk[P1 driver.Operand](ctx *driver.Context, kernel string,", "ctx.Launch(kernel, grid,",
		`"down_32", "op_bf16", "op_f32", "op_many", "up_32",`,
	} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// The checks next to a struct notice that it does not lie in memory as in C: they do not compile.
func TestLayout(t *testing.T) {
	text, err := generated(sample)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{
		{"at    int32", "at    int64"}, {"n    [15]int32", "n    [14]int32"},
		{"\tx    cu.DevicePtr\n", ""}, {"b    [2]driver.TensorMap", "b    driver.TensorMap"},
	} {
		broken := strings.Replace(text, c[0], c[1], 1)
		if broken == text {
			t.Errorf("no %q in\n%s", c[0], text)
		} else if compiles(broken) == nil {
			t.Errorf("%q instead of %q compiles", c[1], c[0])
		}
	}
	// What is read in C has the places of C.
	u, err := parse("op.cu", from("op.cu", sample))
	if err != nil {
		t.Fatal(err)
	}
	maps := u.kernels[slices.IndexFunc(u.kernels, func(k kernel) bool { return k.name == "op_many" })].params[0].record
	var offsets []int
	layOut(maps.fields, func(_ *parameter, offset, _ int) { offsets = append(offsets, offset) })
	if want := []int{0, 128, 384, 392, 400, 408, 468, 472}; !slices.Equal(offsets, want) || maps.extent().size != 512 {
		t.Errorf("fields at %v of %d bytes, want %v of 512", offsets, maps.extent().size, want)
	}
}

// compiles type-checks generated code with stand-ins of what it imports.
func compiles(text string) error {
	set := gotoken.NewFileSet()
	packages := map[string]*types.Package{}
	config := &types.Config{Importer: importers(func(path string) (*types.Package, error) {
		if p := packages[path]; p != nil {
			return p, nil
		}
		return importer.Default().Import(path)
	}), Sizes: types.SizesFor("gc", "amd64")}
	check := func(path, text string) error {
		file, err := parser.ParseFile(set, path, text, 0)
		if err != nil {
			return err
		}
		packages[path], err = config.Check(path, set, []*ast.File{file}, nil)
		return err
	}
	for _, p := range [][2]string{
		{"gorgonia.org/cu", "package cu\ntype DevicePtr uintptr"},
		{"lockstep/kernels", "package kernels\ntype Tensor struct{}\ntype DType uint8\nconst (F32 DType = iota; " +
			"BF16; I32)"},
		{"lockstep/kernels/cuda/driver", `package driver
			import ("gorgonia.org/cu"; "lockstep/kernels")
			type TensorMap [128]byte
			type Array[E any] cu.DevicePtr
			type Operand interface{ kernels.Tensor | cu.DevicePtr }
			type Context struct{}
			func (*Context) Launch(string, [3]int, int, int, []byte) {}
			func At[P Operand](P) cu.DevicePtr { return 0 }
			func AtType[P Operand](P, kernels.DType) cu.DevicePtr { return 0 }
			func Int32(int) int32 { return 0 }
			func Bytes[T any](*T) []byte { return nil }`},
	} {
		if err := check(p[0], p[1]); err != nil {
			return err
		}
	}
	return check("ops", text)
}

type importers func(path string) (*types.Package, error)

func (f importers) Import(path string) (*types.Package, error) { return f(path) }

// The launchers of every folder are those of its sources.
func TestFresh(t *testing.T) {
	docs, err := filepath.Glob("../*/" + output)
	if err != nil || len(docs) == 0 {
		t.Fatal("no folder has launchers", err)
	}
	for _, path := range docs {
		folder := filepath.Dir(path)
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := generate(folder, []string{"../include"}); err != nil {
			t.Error(err)
		} else if string(got) != string(want) {
			t.Errorf("%s is stale: run go generate ./...", path)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("#define F(a, ...) a##b __VA_ARGS__\nF(x, (1), 2)\n#if defined(X)\n#endif")
	f.Fuzz(func(t *testing.T, source string) {
		text, err := generated(source)
		if err == nil && !strings.HasPrefix(text, "// Code generated") {
			t.Errorf("%q: %s", source, text)
		}
	})
}
