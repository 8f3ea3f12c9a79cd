//go:build cuda

package cuda

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"sync"

	"gorgonia.org/cu/nvrtc"

	"lockstep/kernels"
)

//go:embed *.cu *.cuh
var sources embed.FS

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
func loadKernels(arch string, def kernels.Definition) (map[string]*function, error) {
	names, err := fs.Glob(sources, "*.cu")
	if err != nil {
		return nil, err
	}
	objects, errs := make([]object, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { objects[i], errs[i] = compiled(name, arch, def) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	loaded := map[string]*function{}
	for i, name := range names {
		found, err := loadModule(objects[i].code, objects[i].kernels, maxShared)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for k, f := range found {
			loaded[k] = f
		}
	}
	return loaded, nil
}

func source(name string) string {
	text, err := sources.ReadFile(name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// compiled is a source's object for an architecture and a definition, from the cache where it is there. What decides
// the object is in the key.
func compiled(name, arch string, def kernels.Definition) (object, error) {
	headers, err := includes()
	if err != nil {
		return object{}, err
	}
	major, minor, err := nvrtc.Version()
	if err != nil {
		return object{}, fmt.Errorf("NVRTC: %w", err)
	}
	flags := slices.Concat([]string{"--gpu-architecture=" + arch}, options, defines(def))
	key := sha256.New()
	fmt.Fprintf(key, "%d.%d %q %q", major, minor, flags, source(name))
	for _, h := range headers {
		fmt.Fprintf(key, "%q", h.Source)
	}
	path := cachePath(key.Sum(nil))
	if o, ok := readObject(path); ok {
		return o, nil
	}
	o, err := compile(name, flags, headers)
	if err != nil {
		return object{}, fmt.Errorf("%s: NVRTC: %w", name, err)
	}
	storeObject(path, o)
	return o, nil
}

func includes() (headers []nvrtc.Include, err error) {
	names, err := fs.Glob(sources, "*.cuh")
	for _, n := range names {
		headers = append(headers, nvrtc.Include{Name: n, Source: source(n)})
	}
	return headers, err
}

func compile(name string, flags []string, headers []nvrtc.Include) (o object, err error) {
	program, err := nvrtc.CreateProgram(source(name), name, headers...)
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
		o.kernels = append(o.kernels, m[1])
	}
	o.code, err = cubin(&program)
	return o, err
}
