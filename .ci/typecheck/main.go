// Command typecheck checks the types of all packages and of their tests for the system that GOOS and GOARCH name. It
// reads the sources of the standard library: compiling them for that system would take twenty times as long. It exits 1
// where a type is wrong, and prints where.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// listed is what go list says of a package, or of one with its tests.
type listed struct {
	Dir, ImportPath string
	DepOnly         bool
	GoFiles         []string
	ImportMap       map[string]string // from paths in sources to those of variants
}

// imports finds the packages that a package imports among those that were checked.
type imports struct {
	of      listed
	checked map[string]*types.Package
}

func (i imports) Import(path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	if p := i.of.ImportMap[path]; p != "" {
		path = p
	}
	if p := i.checked[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("go list has not named %s", path)
}

func main() {
	n, err := check()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("types of %d packages and tests, %s/%s\n", n, build.Default.GOOS, build.Default.GOARCH)
}

// check returns how many it has checked, without those they need.
func check() (n int, err error) {
	list := exec.Command("go", "list", "-deps", "-test", "-json=Dir,ImportPath,DepOnly,GoFiles,ImportMap", "./...")
	list.Stderr = os.Stderr
	text, err := list.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := list.Start(); err != nil {
		return 0, err
	}
	files, checked := token.NewFileSet(), map[string]*types.Package{}
	var wrong []error
	for lines := json.NewDecoder(text); ; { // a package comes after those that it imports
		var p listed
		if err := lines.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return 0, err
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // go test writes the latter's source
			continue
		}
		var syntax []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return 0, err
			}
			syntax = append(syntax, f)
		}
		conf := types.Config{Importer: imports{p, checked}, IgnoreFuncBodies: p.DepOnly,
			Sizes: types.SizesFor("gc", build.Default.GOARCH), Error: func(err error) { wrong = append(wrong, err) }}
		path, _, _ := strings.Cut(p.ImportPath, " ")
		checked[p.ImportPath], _ = conf.Check(path, files, syntax, nil)
		if !p.DepOnly {
			n++
		}
	}
	return n, errors.Join(append(wrong, list.Wait())...)
}
