//go:build cuda

package cuda

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"gorgonia.org/cu/nvrtc"
)

//go:embed *.cu *.cuh
var sources embed.FS

// options forbid what would change a bit: fused mul and add, flushed subnormals, approximate division and square root.
var options = []string{"--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "-default-device"}

// kernelName finds the kernels of a compiled source.
var kernelName = regexp.MustCompile(`\.entry (\w+)\(`)

// loadKernels compiles every source for an architecture, all at once, or takes it from the cache, and loads it.
func loadKernels(arch string) (map[string]function, error) {
	names, err := fs.Glob(sources, "*.cu")
	if err != nil {
		return nil, err
	}
	images, errs := make([][]byte, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { images[i], errs[i] = image(name, arch) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	loaded := map[string]function{}
	for i, name := range names {
		found, err := loadModule(images[i], kernelsOf(images[i]), maxShared)
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

func kernelsOf(ptx []byte) (names []string) {
	for _, m := range kernelName.FindAllSubmatch(ptx, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

// image is the PTX of a source, ending in a NUL.
func image(name, arch string) ([]byte, error) {
	headers, err := includes()
	if err != nil {
		return nil, err
	}
	major, minor, err := nvrtc.Version()
	if err != nil {
		return nil, fmt.Errorf("NVRTC: %w", err)
	}
	flags := append([]string{"--gpu-architecture=" + strings.Replace(arch, "sm_", "compute_", 1)}, options...)
	key := sha256.New()
	fmt.Fprintf(key, "%d.%d %q %q", major, minor, flags, source(name))
	for _, h := range headers {
		fmt.Fprintf(key, "%q", h.Source)
	}
	cached := cachePath(hex.EncodeToString(key.Sum(nil)))
	if ptx, err := os.ReadFile(cached); err == nil && len(ptx) > 0 && ptx[len(ptx)-1] == 0 {
		return ptx, nil
	}
	ptx, err := compile(name, flags, headers)
	if err != nil {
		return nil, err
	}
	store(cached, ptx)
	return ptx, nil
}

func includes() (headers []nvrtc.Include, err error) {
	names, err := fs.Glob(sources, "*.cuh")
	for _, n := range names {
		headers = append(headers, nvrtc.Include{Name: n, Source: source(n)})
	}
	return headers, err
}

func compile(name string, flags []string, headers []nvrtc.Include) ([]byte, error) {
	program, err := nvrtc.CreateProgram(source(name), name, headers...)
	if err != nil {
		return nil, fmt.Errorf("%s: NVRTC: %w", name, err)
	}
	defer program.Destroy()
	if err := program.Compile(flags...); err != nil {
		log, logErr := program.GetLog()
		return nil, errors.Join(fmt.Errorf("%s: NVRTC: %w: %s", name, err, log), logErr)
	}
	text, err := program.GetPTX()
	if err != nil {
		return nil, fmt.Errorf("%s: NVRTC: %w", name, err)
	}
	return append([]byte(strings.TrimRight(text, "\x00")), 0), nil
}

// cachePath is where a compiled source is kept; "" where the user has no cache folder.
func cachePath(key string) string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "lockstep", "kernels", key+".ptx")
}

// store keeps a compiled source for the next start. Without a folder to write to that start compiles again, and nothing else is lost.
func store(path string, ptx []byte) {
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), "*.tmp")
	if err != nil {
		return
	}
	_, err = f.Write(ptx)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
}
