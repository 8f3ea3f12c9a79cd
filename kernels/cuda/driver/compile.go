//go:build cuda

package driver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
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

// loadKernels compiles every source for an architecture and a definition, all at once, or takes it from the cache, and
// loads it.
func loadKernels(sources Sources, arch string, def kernels.Definition) (map[string]*function, error) {
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
	loaded := map[string]*function{}
	for i, name := range names {
		found, err := loadModule(objects[i].Code, objects[i].Kernels, MaxShared)
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

// Compile is a source's object for an architecture and a definition, from the cache where it is there. What decides
// the object is in the key.
func Compile(sources Sources, name, arch string, def kernels.Definition) (Object, error) {
	source, err := sources.text(name)
	if err != nil {
		return Object{}, err
	}
	headers, err := sources.includes()
	if err != nil {
		return Object{}, err
	}
	major, minor, err := nvrtc.Version()
	if err != nil {
		return Object{}, fmt.Errorf("NVRTC: %w", err)
	}
	flags := flagsOf(arch, def)
	key := sha256.New()
	fmt.Fprintf(key, "%c.%d %q %q", major, minor, flags, source)
	for _, h := range headers {
		fmt.Fprintf(key, "%q", h.Source)
	}
	path := cachePath(key.Sum(nil))
	if o, ok := readObject(path); ok {
		return o, nil
	}
	o, err := compile(name, source, flags, headers)
	if err != nil {
		return Object{}, fmt.Errorf("%s: NVRTC: %w", name, err)
	}
	storeObject(path, o)
	return o, nil
}

// includes is every header.
func (s Sources) includes() (headers []nvrtc.Include, err error) {
	names, err := s.names("*.cuh")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		text, err := s.text(n)
		if err != nil {
			return nil, err
		}
		headers = append(headers, nvrtc.Include{Name: n, Source: text})
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
