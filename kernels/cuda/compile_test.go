//go:build cuda

package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"lockstep/kernels"
)

const compiledHere = "swiglu.cu"

// cached compiles one source into an empty cache and returns its only file.
func cached(t *testing.T) (o object, path string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	o, err := compiled(compiledHere, "sm_90a", kernels.Default())
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
	want := []string{"swiglu_backward_bf16", "swiglu_backward_f32", "swiglu_bf16", "swiglu_f32"}
	for _, name := range want {
		if !bytes.Contains(o.code, []byte(name)) {
			t.Errorf("no kernel %s in the code", name)
		}
	}
	if len(o.kernels) != len(want) || !bytes.HasPrefix(o.code, []byte("\x7fELF")) {
		t.Errorf("kernels %q, code begins with %q", o.kernels, o.code[:4])
	}
	// What lies in the cache is taken, not compiled.
	planted := object{kernels: []string{"planted"}, code: []byte("code\nof two lines")}
	if err := os.WriteFile(path, planted.encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := compiled(compiledHere, "sm_90a", kernels.Default()); err != nil || !reflect.DeepEqual(got, planted) {
		t.Errorf("the cache holds %+v, got %+v (%v)", planted, got, err)
	}
	ex2h := kernels.Default()
	ex2h.Exp2 = kernels.Exp2Ex2h
	if other, err := compiled(compiledHere, "sm_90a", ex2h); err != nil || bytes.Equal(other.code, o.code) ||
		len(other.kernels) != len(want) {
		t.Errorf("another exp2: kernels %q (%v)", other.kernels, err)
	}
	if other, err := compiled(compiledHere, "sm_100a", kernels.Default()); err != nil ||
		bytes.Equal(other.code, o.code) || len(other.kernels) != len(want) {
		t.Errorf("another architecture: kernels %q (%v)", other.kernels, err)
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
		got, err := compiled(compiledHere, "sm_90a", kernels.Default())
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
	if _, err := compiled(compiledHere, "sm_90a", kernels.Default()); err != nil {
		t.Error(err)
	}
}

// stacks is the bytes of local memory of each kernel of a cubin: attribute 0x11 of its section .nv.info, a symbol and a
// size.
func stacks(t *testing.T, code []byte) map[string]uint32 {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Section(".nv.info").Data()
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]uint32{}
	for len(info) >= 4 {
		format, attribute, n := info[0], info[1], 0
		if format == 4 { // of so many bytes
			n = int(binary.LittleEndian.Uint16(info[2:]))
		}
		if format == 4 && attribute == 0x11 {
			sizes[symbols[binary.LittleEndian.Uint32(info[4:])-1].Name] = binary.LittleEndian.Uint32(info[8:])
		}
		info = info[4+n:]
	}
	return sizes
}

// The kernels of absorbed attention and of weight gradients keep all they add up in registers, and those that round
// weights what they have read, on every architecture and by both definitions of 2^x.
func TestRegisters(t *testing.T) {
	names := []string{"absorbed.cu", "absorbed_backward.cu", "absorbed_target.cu", "round.cu"}
	for arch, names := range map[string][]string{"sm_90a": append(names, "absorbed_wide.cu", "absorbed_dq_wide.cu",
		"absorbed_dkv_wide.cu", "weightgrad_wgmma.cu"), "sm_100a": names} {
		for _, exp2 := range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
			def := kernels.Default()
			def.Exp2 = exp2
			for _, name := range names {
				o, err := compiled(name, arch, def)
				if err != nil {
					t.Fatal(err)
				}
				sizes := stacks(t, o.code)
				for _, kernel := range o.kernels {
					if bytes, known := sizes[kernel]; !known || bytes > 0 {
						t.Errorf("%s, %s, exp2 %s: %d bytes of local memory (%v)", kernel, arch, exp2, bytes, known)
					}
				}
			}
		}
	}
}
