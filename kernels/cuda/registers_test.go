//go:build cuda

package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/driver"
)

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

// The kernels of absorbed attention, of attention with wgmma and of weight gradients keep all they add up in registers,
// by both definitions of 2^x, and those that round to a format what they have read; on Blackwell two of the last spill
// 8 bytes.
func TestRegisters(t *testing.T) {
	names := []string{"absorbed.cu", "absorbed_backward.cu", "absorbed_target.cu"}
	for arch, names := range map[string][]string{"sm_90a": append(names, "absorbed_wide.cu", "absorbed_dq_wide.cu",
		"absorbed_dkv_wide.cu", "absorbed_listed.cu", "attention_wide.cu", "attention_wide_256.cu",
		"attention_backward_wide.cu", "attention_backward_256.cu", "weightgrad_wgmma.cu", "fakequantize.cu"),
		"sm_100a": names} {
		for _, exp2 := range []kernels.Exp2Mode{kernels.Exp2Poly, kernels.Exp2Ex2h} {
			def := kernels.Default()
			def.Exp2 = exp2
			for _, name := range names {
				o, err := driver.Compile(sources, name, arch, def)
				if err != nil {
					t.Fatal(err)
				}
				sizes := stacks(t, o.Code)
				for _, kernel := range o.Kernels {
					if bytes, known := sizes[kernel]; !known || bytes > 0 {
						t.Errorf("%s, %s, exp2 %s: %d bytes of local memory (%v)", kernel, arch, exp2, bytes, known)
					}
				}
			}
		}
	}
}
