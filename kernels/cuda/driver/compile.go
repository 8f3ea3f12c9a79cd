//go:build cuda

package driver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"gorgonia.org/cu/nvrtc"

	"lockstep/kernels"
)

// flagsOf are NVRTC's options for an architecture and a definition.
func flagsOf(arch string, def kernels.Definition) []string {
	return slices.Concat([]string{"--gpu-architecture=" + arch}, options, defines(def))
}

// Sources are folders of CUDA sources: each .cu is a module, and every module may include every .cuh. No two files have
// one name.
type Sources []fs.FS

// names lists the files that match a pattern, in order.
func (s Sources) names(pattern string) (all []string, err error) {
	for _, folder := range s {
		names, err := fs.Glob(folder, pattern)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	for i := range all[min(1, len(all)):] {
		if all[i] == all[i+1] {
			return nil, fmt.Errorf("two sources are named %s", all[i])
		}
	}
	return all, nil
}

// text is the content of a file.
func (s Sources) text(name string) (string, error) {
	for _, folder := range s {
		text, err := fs.ReadFile(folder, name)
		if err == nil {
			return string(text), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

// options forbid what would change a bit: fused mul and add, flushed subnormals, approximate division and square root.
var options = []string{"--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
	"-default-device"}

// kernelName finds the kernels in the assembly of a compiled source.
var kernelName = regexp.MustCompile(`\.entry (\w+)\(`)

// defines chooses among the sources' variants.
func defines(def kernels.Definition) (flags []string) {
	for _, d := range []struct {
		on    bool
		macro string
	}{
		{def.Exp2 == kernels.Exp2Ex2h, "EXP2_EX2H"}, {def.Combine == kernels.ToBF16, "COMBINE_BF16"},
		{def.Router == kernels.ToBF16, "ROUTER_BF16"}, {def.Norm == kernels.ToBF16, "NORM_BF16"},
	} {
		if d.on {
			flags = append(flags, "--define-macro="+d.macro)
		}
	}
	return flags
}

// compileAll compiles every source for an architecture and a definition, all at once, or takes it from the cache:
// objects by the names of the sources.
func compileAll(sources Sources, arch string, def kernels.Definition) (map[string]Object, error) {
	names, err := sources.names("*.cu")
	if err != nil {
		return nil, err
	}
	objects, errs := make([]Object, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { objects[i], errs[i] = Compile(sources, name, arch, def) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	of := map[string]Object{}
	for i, name := range names {
		of[name] = objects[i]
	}
	return of, nil
}

// loadKernels loads what compileAll has compiled.
func loadKernels(sources Sources, arch string, def kernels.Definition) (map[string]*function, error) {
	objects, err := compileAll(sources, arch, def)
	if err != nil {
		return nil, err
	}
	loaded := map[string]*function{}
	for name, o := range objects {
		found, err := loadModule(o.Code, o.Kernels, MaxShared)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for k, f := range found {
			f.source = name
			loaded[k] = f
		}
	}
	return loaded, nil
}

// unit is what decides an object.
type unit struct {
	name, source string
	flags        []string
	headers      []nvrtc.Include // that the source includes: another one's change compiles nothing again
	path         string          // of its object in the cache; "": there is none
}

func unitOf(sources Sources, name, arch string, def kernels.Definition) (u unit, err error) {
	u = unit{name: name, flags: flagsOf(arch, def)}
	if u.source, err = sources.text(name); err != nil {
		return u, err
	}
	if u.headers, err = sources.includes(u.source); err != nil {
		return u, fmt.Errorf("%s: %w", name, err)
	}
	major, minor, err := nvrtc.Version()
	if err != nil {
		return u, fmt.Errorf("NVRTC: %w", err)
	}
	key := sha256.New()
	fmt.Fprintf(key, "%c.%d %q %q", major, minor, u.flags, u.source)
	for _, h := range u.headers {
		fmt.Fprintf(key, " %q %q", h.Name, h.Source)
	}
	u.path = cachePath(key.Sum(nil))
	return u, nil
}

// Compile is a source's object for an architecture and a definition, from the cache where it is there.
func Compile(sources Sources, name, arch string, def kernels.Definition) (Object, error) {
	u, err := unitOf(sources, name, arch, def)
	if err != nil {
		return Object{}, err
	}
	if o, ok := readObject(u.path); ok {
		return o, nil
	}
	o, err := compile(u.name, u.source, u.flags, u.headers)
	if err != nil {
		return Object{}, fmt.Errorf("%s: NVRTC: %w", name, err)
	}
	storeObject(u.path, o)
	return o, nil
}

// Prepare compiles what Open loads into the cache, and returns its folder and how many objects it has for that. It
// takes NVRTC and no GPU.
func Prepare(sources Sources, arch string, def kernels.Definition) (folder string, objects int, err error) {
	sources = withMove(sources)
	all, err := compileAll(sources, arch, def)
	if err != nil {
		return "", 0, err
	}
	for name := range all {
		u, err := unitOf(sources, name, arch, def)
		if err != nil {
			return "", 0, err
		}
		if _, kept := readObject(u.path); !kept {
			return "", 0, fmt.Errorf("compiled kernels are not kept, the user has no cache folder that can be " +
				"written: set XDG_CACHE_HOME to one")
		}
		folder = filepath.Dir(u.path)
	}
	return folder, len(all), nil
}

// included finds the headers of the sources' own that a text includes.
var included = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*"([^"]+)"`)

// includes is the headers that a text includes, and those that they include, in the order of their names. The compiler
// has no others: one that is overlooked here is an error there, not an object of an old header.
func (s Sources) includes(text string) ([]nvrtc.Include, error) {
	texts := map[string]string{}
	var follow func(text string) error
	follow = func(text string) error {
		for _, m := range included.FindAllStringSubmatch(text, -1) {
			if _, known := texts[m[1]]; known {
				continue
			}
			header, err := s.text(m[1])
			if err != nil {
				return err
			}
			texts[m[1]] = header
			if err := follow(header); err != nil {
				return err
			}
		}
		return nil
	}
	if err := follow(text); err != nil {
		return nil, err
	}
	var headers []nvrtc.Include
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		headers = append(headers, nvrtc.Include{Name: name, Source: texts[name]})
	}
	return headers, nil
}

func compile(name, source string, flags []string, headers []nvrtc.Include) (o Object, err error) {
	program, err := nvrtc.CreateProgram(source, name, headers...)
	if err != nil {
		return o, err
	}
	defer program.Destroy()
	if err := program.Compile(flags...); err != nil {
		log, logErr := program.GetLog()
		return o, errors.Join(fmt.Errorf("%w: %s", err, log), logErr)
	}
	assembly, err := program.GetPTX()
	if err != nil {
		return o, err
	}
	for _, m := range kernelName.FindAllStringSubmatch(assembly, -1) {
		o.Kernels = append(o.Kernels, m[1])
	}
	o.Code, err = cubin(&program)
	return o, err
}
