//go:build cuda

package selftest

import (
	"strings"
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

// What a model's Build asks before it multiplies inputs in codes: the card's kernels, and weights that they take.
func TestCheckCodes(t *testing.T) {
	d := unchecked(t)
	w := kernels.QuantizedWeight{Format: quant.FP8.Format(), DType: kernels.BF16, Groups: 2, Rows: 768, Cols: 2048}
	if err := d.CheckCodes(w); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(w *kernels.QuantizedWeight){
		"e8m0":              func(w *kernels.QuantizedWeight) { w.Format.Scale = quant.ScaleE8M0 },
		"multiples of 16":   func(w *kernels.QuantizedWeight) { w.Cols = 2040 },
		"bf16 around them":  func(w *kernels.QuantizedWeight) { w.DType = kernels.F32 },
		"of at most 1024 e": func(w *kernels.QuantizedWeight) { w.Groups = 1025 },
	} {
		own := w
		change(&own)
		if err := d.CheckCodes(own); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
