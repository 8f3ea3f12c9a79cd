package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// layers lists the packages from the top down. A package may import those of later layers, and none of its own layer or
// an earlier one; folders inside a package belong to it (data/jinja to data) and follow its rule towards the others.
var layers = [][]string{{""}, {"train"}, {"serve"}, {"optim", "model"}, {"parallel"}, {"data"}, {"kernels"},
	{"quant", ".ci"}}

// configs stands beside the layers: these import it, and it imports nothing of the project.
var configsReaders = []string{"", "train"}

// topLevel is everything that may lie in the top folder, besides what git ignores.
var topLevel = []string{
	".ci", ".gitignore", "ARCHITECTURE.md", "LICENSE", "LOG.md", "Makefile", "README.md", "configs", "data", "docs",
	"go.mod", "go.sum",
	"kernels", "lint_test.go", "main.go", "main_hostile_inputs_test.go", "main_hostile_test.go",
	"main_peak_unix_test.go", "main_peak_windows_test.go", "main_signal_test.go", "main_test.go", "model", "optim",
	"parallel", "quant", "serve", "train",
}

// cgoFolders may import "C", and only under the build tag cuda: everything else builds with CGO_ENABLED=0.
var cgoFolders = []string{"kernels/cuda/driver"}

// source is a parsed Go file; its name is relative to the top folder, with slashes.
type source struct {
	name string
	set  *token.FileSet
	file *ast.File
}

func (s source) folder() string {
	if d := path.Dir(s.name); d != "." {
		return d
	}
	return ""
}

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

// tracked lists the files that git knows or would add, sorted.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var names []string
	for _, name := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if _, err := os.Lstat(name); err == nil { // not one deleted and not yet committed
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sources parses every Go file of the project.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for _, name := range tracked(t) {
		if path.Ext(name) != ".go" || strings.Contains(name, "testdata/") {
			continue
		}
		s := source{name: name, set: token.NewFileSet()}
		var err error
		if s.file, err = parser.ParseFile(s.set, name, nil, parser.ParseComments); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

func imports(s source) []string {
	var names []string
	for _, spec := range s.file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has checked it
		}
		names = append(names, name)
	}
	return names
}

// owner is the package of the layers that a folder belongs to: its first element.
func owner(folder string) string {
	first, _, _ := strings.Cut(folder, "/")
	return first
}

// layerOf is the number of the layer, -1 if the package is in none.
func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

// mayImport says whether a file of package from may import package to, both as owners. Tests of a package may also use
// its siblings, which have no way back into it.
func mayImport(from, to string, test bool) bool {
	switch {
	case from == to:
		return true
	case to == "configs":
		return slices.Contains(configsReaders, from)
	case from == "configs":
		return false
	}
	below := layerOf(to) - layerOf(from)
	return below > 0 || test && below == 0
}

func TestImportDirections(t *testing.T) {
	for _, s := range sources(t) {
		from := owner(s.folder())
		if layerOf(from) < 0 && from != "configs" {
			t.Errorf("%s: package %s is in no layer: add it to lint_test.go", s.name, from)
			continue
		}
		for _, name := range imports(s) {
			if name != "lockstep" && !strings.HasPrefix(name, "lockstep/") {
				continue
			}
			to := owner(strings.TrimPrefix(strings.TrimPrefix(name, "lockstep"), "/"))
			if !mayImport(from, to, s.test()) {
				t.Errorf("%s: imports %s, against the direction of the layers", s.name, name)
			}
		}
	}
}

// cudaLayers are the packages of kernels/cuda from the top down, by folder; those of one layer do not import each
// other.
var cudaLayers = [][]string{{"bench"}, {""}, {"selftest"}, {"gemm", "attention", "moe", "recurrent", "sample"},
	{"rows"},
	{"driver", "include", "launchgen"}}

// TestCUDADirections holds the order within kernels/cuda. Tests are free.
func TestCUDADirections(t *testing.T) {
	const top = "kernels/cuda"
	layer := func(folder string) int {
		name := strings.TrimPrefix(strings.TrimPrefix(folder, top), "/")
		return slices.IndexFunc(cudaLayers, func(l []string) bool { return slices.Contains(l, name) })
	}
	seen := 0
	for _, s := range sources(t) {
		if s.folder() != top && !strings.HasPrefix(s.folder(), top+"/") || s.test() || s.folder() == top+"/cudatest" {
			continue
		}
		from := layer(s.folder())
		if from < 0 {
			t.Errorf("%s: package %s is in no layer of kernels/cuda: add it to lint_test.go", s.name, s.folder())
			continue
		}
		seen++
		for _, name := range imports(s) {
			to := strings.TrimPrefix(name, "lockstep/")
			if (to == top || strings.HasPrefix(to, top+"/")) && layer(to) <= from {
				t.Errorf("%s: imports %s, against the direction of the layers of kernels/cuda", s.name, name)
			}
		}
	}
	if seen == 0 {
		t.Fatal("found no file of kernels/cuda")
	}
}

// TestMayImport shows that the rule refuses what it should.
func TestMayImport(t *testing.T) {
	for _, c := range []struct {
		from, to string
		test     bool
		want     bool
	}{
		{"", "train", false, true}, {"train", "kernels", false, true}, {"optim", "parallel", false, true},
		{"data", "kernels", false, true},
		{"train", "", false, false}, {"kernels", "data", false, false}, {"model", "serve", false, false},
		{"serve", "train", true, false},
		{"model", "optim", false, false}, {"model", "optim", true, true}, {"kernels", "quant", false, true},
		{"quant", "kernels", true, false}, {"parallel", "model", true, false},
		{"train", "configs", false, true}, {"", "configs", false, true}, {"serve", "configs", false, false},
		{"configs", "data", false, false},
	} {
		if got := mayImport(c.from, c.to, c.test); got != c.want {
			t.Errorf("%q imports %q, test %t: allowed %t, want %t", c.from, c.to, c.test, got, c.want)
		}
	}
}

// rooms are the packages of a folder from the top down, as layers are: each may import those of later lines alone.
// Tests may use any that has no way back into theirs.
var rooms = [][]string{
	{"train/bench"}, {"train"}, {"train/plan", "train/profile", "train/report"}, {"train/setup"},
	{"train/trainer", "train/runlog"},
	{"train/testshape"},
	{"model"}, {"model/checkpoint", "model/lowrank", "model/peft"},
}

func TestRooms(t *testing.T) {
	room := func(folder string) int {
		return slices.IndexFunc(rooms, func(l []string) bool { return slices.Contains(l, folder) })
	}
	for _, s := range sources(t) {
		from := room(s.folder())
		if from < 0 {
			if slices.Contains([]string{"train", "model"}, owner(s.folder())) {
				t.Errorf("%s: package %s has no place among rooms: add it to lint_test.go", s.name, s.folder())
			}
			continue
		}
		if s.test() {
			continue
		}
		for _, name := range imports(s) {
			folder, ours := strings.CutPrefix(name, "lockstep/")
			if to := room(folder); ours && to >= 0 && to <= from {
				t.Errorf("%s: imports %s, which is not below %s", s.name, name, s.folder())
			}
		}
	}
}

func TestTopLevel(t *testing.T) {
	for _, name := range tracked(t) {
		if first := owner(name); !slices.Contains(topLevel, first) {
			t.Errorf("%s: nothing named %s belongs in the top folder: move it, or list it in lint_test.go", name, first)
		}
	}
}

// vague are names of packages that say nothing about what is in them.
var vague = []string{"common", "helper", "helpers", "misc", "util", "utils"}

func TestPackages(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		if slices.Contains(vague, s.file.Name.Name) {
			t.Errorf("%s: package %s: name it by what it holds", s.name, s.file.Name.Name)
		}
		documented[s.folder()] = documented[s.folder()] || s.file.Doc != nil
	}
	for _, folder := range slices.Sorted(maps.Keys(documented)) {
		if !documented[folder] {
			t.Errorf("%q has no package comment: say what lives there and what it may import", folder)
		}
	}
}

func TestCgo(t *testing.T) {
	for _, s := range sources(t) {
		if !slices.Contains(imports(s), "C") {
			continue
		}
		if !slices.Contains(cgoFolders, s.folder()) {
			t.Errorf("%s: cgo belongs in %s alone", s.name, strings.Join(cgoFolders, ", "))
		}
		if !strings.HasPrefix(constraint(s), "//go:build cuda") {
			t.Errorf("%s: cgo without //go:build cuda: the default build must do without a C compiler", s.name)
		}
	}
}

// openers may open a device: the package that does it for all others, and devices that hold themselves against another.
var openers = []string{"kernels/devices", "kernels/cuda"}

// TestOpeners wants one way to a device, so that what a command says of it (kind, threads, arithmetic) means the same
// everywhere. Tests open what they like.
func TestOpeners(t *testing.T) {
	for _, s := range sources(t) {
		allowed := slices.ContainsFunc(openers, func(o string) bool {
			return s.folder() == o || strings.HasPrefix(s.folder(), o+"/")
		})
		if s.test() || allowed {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "New" {
				return true
			}
			if p, ok := sel.X.(*ast.Ident); ok && (p.Name == "cpu" || p.Name == "cuda") {
				t.Errorf("%s: opens a device: kernels/devices.Open does", s.set.Position(call.Pos()))
			}
			return true
		})
	}
}

// TestCapabilities wants no assertion of what a device can do where a rank uses it: the rank has [kernels.Transfers], a
// model binds the rest when it is built. serve/ranks.go asks how much room there is before it builds one.
func TestCapabilities(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || s.name == "serve/ranks.go" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			of, ok := n.(*ast.TypeAssertExpr)
			if !ok {
				return true
			}
			dev, isField := of.X.(*ast.SelectorExpr)
			to, isOther := of.Type.(*ast.SelectorExpr)
			if !isField || !isOther || dev.Sel.Name != "Dev" {
				return true
			}
			if p, ok := to.X.(*ast.Ident); ok && p.Name == "kernels" {
				t.Errorf("%s: asserts what a device can do", s.set.Position(of.Pos()))
			}
			return true
		})
	}
}

// constraint is the build line of a file.
func constraint(s source) string {
	for _, group := range s.file.Comments {
		for _, c := range group.List {
			if c.Pos() < s.file.Package && strings.HasPrefix(c.Text, "//go:build ") {
				return c.Text
			}
		}
	}
	return ""
}

// unwelcome are marks of unfinished work, and places that exist on one machine alone. Each is split here so that this
// file passes.
var unwelcome = []string{"TO" + "DO", "FIX" + "ME", "XX" + "X:", "HA" + "CK", "not " + "implemented", "/wo" + "rk/",
	"/ro" + "ot/", "../sha" + "red"}

func TestUnwelcomeWords(t *testing.T) {
	for _, name := range tracked(t) {
		if strings.Contains(name, "testdata/") || name == "LICENSE" || name == "go.sum" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(text), "\n") {
			for _, word := range unwelcome {
				if strings.Contains(line, word) {
					t.Errorf("%s:%d: %q", name, n+1, word)
				}
			}
		}
	}
}

// retired are private words of this project, each with the field's words that replace it. They must not come back as a
// part of a name, in a comment or in a message.
var retired = map[string]string{
	"arms":    "series of a report",
	"beside":  "next to, concurrently",
	"facts":   "model info",
	"lesson":  "training sample, targets, indexer loss",
	"lessons": "training samples, targets",
	"nobody":  "unused, no reader",
	"outcome": "operation output, result",
	"picked":  "chosen, selected",
	"picks":   "top-k ids, expert ids, selected keys",
	"pupil":   "student",
	"pupils":  "students",
	"settle":  "flush, finish",
	"settled": "flushed, finished",
	"settles": "flushes, finishes",
	"talk":    "chat completions",
	"tap":     "trace, recorder",
	"taps":    "traces, recorders",
	"teach":   "distil, fit",
	"teaches": "distils, fits",
	"turn":    "interleaved group, head stride, k-step, stage, round; rotate; convert",
	"turned":  "rotated, converted",
	"turns":   "interleaved groups, k-steps, stages, rounds; rotates; converts",
	"twin":    "reference copy, pair",
	"twins":   "reference copies, pairs",
	"voice":   "chat completions",
	"voices":  "chat completions",
}

// ownMeaning lists retired words that are the field's own in a folder.
var ownMeaning = map[string][]string{
	// Messages of a chat.
	"data": {"turn", "turns"},

	// Elements of a short convolution, here and in model.
	"kernels": {"tap", "taps"},

	"model": {"taps"},
}

// namePart is a word of text or a part of a name: "topKIDs" has top, K, IDs.
var namePart = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

func TestRetiredWords(t *testing.T) {
	used := map[string]map[string]bool{} // folder of an exception -> word
	for _, name := range tracked(t) {
		if !slices.Contains([]string{".go", ".cu", ".cuh"}, path.Ext(name)) || name == "lint_test.go" ||
			strings.Contains(name, "testdata/") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			for _, part := range namePart.FindAllString(line, -1) {
				word := strings.ToLower(part)
				instead, found := retired[word]
				if !found {
					continue
				}
				folder := exception(name, word)
				if folder == "" {
					t.Errorf("%s:%d: %q: write %s", name, i+1, word, instead)
					continue
				}
				if used[folder] == nil {
					used[folder] = map[string]bool{}
				}
				used[folder][word] = true
			}
		}
	}
	for folder, words := range ownMeaning {
		for _, word := range words {
			if !used[folder][word] {
				t.Errorf("%s does not use %q any more: remove the exception from lint_test.go", folder, word)
			}
		}
	}
}

// exception is the folder, of those that the file lies in, for which a retired word is allowed; "" if there is none.
func exception(name, word string) string {
	for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
		if slices.Contains(ownMeaning[folder], word) {
			return folder
		}
	}
	return ""
}

func TestFiles(t *testing.T) {
	const limit = 4 << 20 // bytes of a file
	for _, name := range tracked(t) {
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Type() == fs.ModeSymlink {
			t.Errorf("%s: a symbolic link: archives and other systems lose it", name)
		}
		if info.Size() > limit {
			t.Errorf("%s: %d bytes: want files of at most %d", name, info.Size(), limit)
		}
	}
}

// TestSizes reports what is long, and fails nothing: a length is a reason to look, not a defect.
func TestSizes(t *testing.T) {
	const fileLines, funcLines = 400, 60
	for _, s := range sources(t) {
		if s.test() || ast.IsGenerated(s.file) {
			continue
		}
		if n := s.set.Position(s.file.End()).Line; n > fileLines {
			t.Logf("%s: %d lines", s.name, n)
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				if n := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line + 1; n > funcLines {
					t.Logf("%s: %s has %d lines", filepath.ToSlash(s.name), f.Name.Name, n)
				}
			}
		}
	}
}

// columns is the most that a line of code may have, where a tab counts as four.
const columns = 120

func TestLineLength(t *testing.T) {
	seen := 0
	for _, name := range tracked(t) {
		if !slices.Contains([]string{".go", ".s", ".cu", ".cuh", ".cc", ".h"}, path.Ext(name)) {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if n := utf8.RuneCountInString(line) + 3*strings.Count(line, "\t"); n > columns && !generated(text) {
				t.Errorf("%s:%d: %d columns, want at most %d", name, i+1, n, columns)
			}
		}
		seen++
	}
	if seen == 0 {
		t.Fatal("found no code")
	}
}

// generated tells a file that a program wrote, by Go's convention.
func generated(text []byte) bool {
	first, _, _ := bytes.Cut(text, []byte("\n"))
	return bytes.HasPrefix(first, []byte("// Code generated ")) && bytes.HasSuffix(first, []byte(" DO NOT EDIT."))
}

// filesInFolder is the most files that a folder may hold besides tests, so that a reader can see it at once.
const filesInFolder = 60

func TestFolderSizes(t *testing.T) {
	files := map[string]int{}
	for _, name := range tracked(t) {
		code := slices.Contains([]string{".go", ".s", ".cu", ".cuh", ".cc", ".h"}, path.Ext(name))
		if code && !strings.HasSuffix(name, "_test.go") {
			files[path.Dir(name)]++
		}
	}
	if len(files) == 0 {
		t.Fatal("found no code")
	}
	for folder, n := range files {
		if n > filesInFolder {
			t.Errorf("%s has %d files besides tests, want at most %d: split it", folder, n, filesInFolder)
		}
	}
}

// namedPath is a file that a document names with its folder.
var namedPath = regexp.MustCompile("`((?:[a-z0-9_.]+/)+[a-z0-9_]+\\.(?:go|cu|cuh|py|toml))`")

// Files that the documents for newcomers name are there.
func TestDocumentsNameFiles(t *testing.T) {
	for _, document := range []string{"README.md", "ARCHITECTURE.md"} {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		named := namedPath.FindAllSubmatch(text, -1)
		if len(named) == 0 {
			t.Errorf("%s names no file: this test saw nothing", document)
		}
		for _, m := range named {
			if _, err := os.Stat(string(m[1])); err != nil {
				t.Errorf("%s names %s, which is not there", document, m[1])
			}
		}
	}
}
