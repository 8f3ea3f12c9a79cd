//go:build cuda

package cuda

import (
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// The card's instruction for 2^x is Exp2H, and every operation that takes 2^x follows the definition.
func TestEx2h(t *testing.T) {
	def := card.Definition()
	def.Exp2 = kernels.Exp2Ex2h
	ref, err := cpu.New(def, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := New(def, 0) // admits the card by its checksum
	if err != nil {
		t.Fatal(err)
	}
	poly := card
	defer func(r, c kernels.Device) { reference, card = r, c }(reference, card)
	reference, card = ref, gpu
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{{"Attention", TestAttention}, {"AttentionSplits", TestAttentionSplits}, {"LogProb", TestLogProb}, {"SwiGLU", TestSwiGLU}, {"MoE", TestMoE}, {"Sample", TestSample}} {
		t.Run(test.name, test.run)
	}
	x := []operand{normal(kernels.F32, 7, 100, 1), normal(kernels.F32, 7, 200, 1)}
	card = poly
	if n, _ := differences(t, x, swiglu, swiglu); n == 0 {
		t.Error("both definitions give the same bits: one is not used")
	}
}

func swiglu(d kernels.Device, x []kernels.Tensor) { d.SwiGLU(x[0], x[1]) }

// The self-test can fail: kernels compiled for another 2^x are refused.
func TestAdmit(t *testing.T) {
	d := *card.(*Device)
	if err := d.admit(); err != nil {
		t.Errorf("the card as it is: %v", err)
	}
	d.def.Exp2 = kernels.Exp2Ex2h // while its kernels are those of poly
	if err := d.admit(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
