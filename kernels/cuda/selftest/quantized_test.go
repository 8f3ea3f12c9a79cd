//go:build cuda

package selftest

import (
	"testing"

	"lockstep/kernels"
	"lockstep/quant"
)

// What a model's Build asks before it keeps weights in codes.
func TestCheckQuantized(t *testing.T) {
	d := unchecked(t)
	for _, f := range []quant.Format{{Code: quant.CodeINT4, Scale: quant.ScaleBF16, Wide: 32},
		{Code: quant.CodeE2M1, Scale: quant.ScaleE8M0, Wide: 32},
		{Code: quant.CodeE4M3, Scale: quant.ScaleE8M0, Wide: 32},
		{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 128},
		{Code: quant.CodeE4M3, Scale: quant.ScaleF32, Wide: 7168}} {
		w := kernels.QuantizedWeight{Format: f, DType: kernels.BF16, Groups: 2, Rows: 768, Cols: 2048}
		if err := d.CheckQuantized(w); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		if w.DType = kernels.F32; d.CheckQuantized(w) == nil {
			t.Errorf("%s: numbers of fp32 are accepted", f)
		}
	}
}
