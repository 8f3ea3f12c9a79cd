// Launchgen writes launch_generated.go for a folder of CUDA sources: for each family of kernels with one parameter list
// a Go function that launches them, Go structs for the structs of their parameters, the integer constants that the
// folder's Go code mentions, and the names of all kernels. A launch with a wrong argument does not compile.
//
//	//go:generate go run lockstep/kernels/cuda/launchgen [-I folder]...
//
// It has a preprocessor of its own and needs no compiler. What it cannot read is an error with file and line.
//
// Names: the launcher of kernels swiglu_f32 and swiglu_bf16 is launchSwiglu, and takes the variant "_f32" or "_bf16".
// Kernels of a file that have one parameter list, save for the element types of pointers, are a family, named by the
// prefix that their names share. Where there is none, a comment in the source names it, and the launcher takes the
// whole name of a kernel:
//
//	//launch:family NAME PREFIX...
//
// struct Tile of attention.cuh is attentionTile, and kTile of matmul.cu is matmulTile.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	var include []string
	flag.Func("I", "a `folder` of headers, after the one of the sources", func(s string) error {
		include = append(include, s)
		return nil
	})
	flag.Parse()
	text, err := generate(".", include)
	if err == nil {
		err = os.WriteFile(output, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "launchgen:", err)
		os.Exit(1)
	}
}

const output = "launch_generated.go"

// generate is the text of the file of a folder.
func generate(folder string, include []string) ([]byte, error) {
	sources, err := filepath.Glob(filepath.Join(folder, "*.cu"))
	if err != nil {
		return nil, err
	}
	read := func(name string) (string, error) {
		var first error
		for _, dir := range slices.Concat([]string{folder}, include) {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err == nil {
				return string(text), nil
			}
			if first == nil {
				first = err
			}
		}
		return "", first
	}
	var units []*unit
	for _, path := range sources {
		u, err := parse(filepath.Base(path), read)
		if err != nil {
			return nil, err
		}
		units = append(units, u)
	}
	families, err := group(units)
	if err != nil {
		return nil, err
	}
	goPackage, mentioned, err := mentions(folder)
	if err != nil {
		return nil, err
	}
	return emit(goPackage, units, families, mentioned)
}
