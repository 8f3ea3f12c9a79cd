//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"lockstep/kernels"
)

// admit refuses a card whose instruction for 2^x is another function than the definition's, which takes a fraction of a millisecond.
func (d *Device) admit() error {
	if d.def.Exp2 != kernels.Exp2Ex2h {
		return nil
	}
	got, err := d.exp2Checksum()
	if err != nil {
		return err
	}
	if got != kernels.Exp2HChecksum {
		return fmt.Errorf("its instruction ex2.approx.ftz.f32 is not exp2 %q (checksum %#x, want %#x): set definition.exp2 = %q", kernels.Exp2Ex2h, got, kernels.Exp2HChecksum, kernels.Exp2Poly)
	}
	return nil
}

// exp2Checksum is kernels.Exp2HChecksum by the card's instruction.
func (d *Device) exp2Checksum() (sum uint64, err error) {
	at := d.workspace(int(unsafe.Sizeof(sum)))
	if err := cu.MemsetD8(at, 0, int64(unsafe.Sizeof(sum))); err != nil {
		return 0, err
	}
	d.launch("ex2h_checksum", [3]int{8 * d.processors, 1, 1}, 256, 0, at)
	err = cu.MemcpyDtoH(unsafe.Pointer(&sum), at, int64(unsafe.Sizeof(sum)))
	return sum, err
}
