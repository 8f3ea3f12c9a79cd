//go:build cuda

package cuda

import (
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
)

// by runs tests on devices of another definition, which the card is admitted to, then body with the card of the default
// one.
func by(t *testing.T, def kernels.Definition, tests map[string]func(*testing.T), body func()) {
	t.Helper()
	ref, err := cpu.New(def, cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := New(def, 0)
	if err != nil {
		t.Fatal(err)
	}
	plain := card
	defer func(r, c kernels.Device) { reference, card = r, c }(reference, card)
	reference, card = ref, gpu
	for name, run := range tests {
		t.Run(name, run)
	}
	card = plain
	body()
}

// The card's instruction for 2^x is Exp2H, and every operation that takes 2^x follows the definition.
func TestEx2h(t *testing.T) {
	def := card.Definition()
	def.Exp2 = kernels.Exp2Ex2h
	by(t, def, map[string]func(*testing.T){
		"Attention": TestAttention, "AttentionSplits": TestAttentionSplits, "LogProb": TestLogProb,
		"SparseSelect": TestSparseSelectKeys, "AbsorbedCached": TestAbsorbedCached,
		"AbsorbedAllKeys": TestAbsorbedAllKeys, "SwiGLU": TestSwiGLU, "MoE": TestMoE, "Sample": TestSample,
	}, func() {
		x := []operand{normal(kernels.F32, 7, 100, 1), normal(kernels.F32, 7, 200, 1)}
		if n, _ := differences(t, x, swiglu, swiglu); n == 0 {
			t.Error("both definitions give the same bits: one is not used")
		}
	})
}

// The roundings and splits that other stacks have.
func TestRoundings(t *testing.T) {
	def := card.Definition()
	def.Combine, def.Router, def.Norm, def.KeySplit = kernels.ToBF16, kernels.ToBF16, kernels.ToBF16, 192
	by(t, def, map[string]func(*testing.T){
		"Attention": TestAttention, "AttentionSplits": TestAttentionSplits, "LatentAttention": TestLatentAttention,
		"Norm": TestNorm, "HeadNormRope": TestHeadNormRope, "Route": TestRoute, "MoE": TestMoE,
	}, func() {
		norm := func(d kernels.Device, x []kernels.Tensor) { d.RMSNorm(x[0], x[1], x[2], x[3], kernels.Norm{}) }
		x := []operand{normal(kernels.BF16, 9, 100, 1), normal(kernels.F32, 1, 9, 1), normal(kernels.BF16, 9, 100, 1),
			normal(kernels.BF16, 1, 100, 1)}
		if n, _ := differences(t, x, norm, norm); n == 0 {
			t.Error("both definitions give the same bits: one is not used")
		}
	})
}

func swiglu(d kernels.Device, x []kernels.Tensor) { d.SwiGLU(x[0], x[1]) }

// The self-test can fail: kernels compiled for another 2^x are refused.
func TestAdmit(t *testing.T) {
	d := untried(t)
	if err := d.admit(); err != nil {
		t.Errorf("the card as it is: %v", err)
	}
	d.Def.Exp2 = kernels.Exp2Ex2h // while its kernels are those of poly
	if err := d.admit(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
