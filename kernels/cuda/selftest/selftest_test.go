//go:build cuda

package selftest

import (
	"math"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda/cudatest"
)

// unchecked returns checks of the card, none run yet. What a test changes of its definition is undone.
func unchecked(t *testing.T) *Checks {
	def := cudatest.GPU.Def
	t.Cleanup(func() { cudatest.GPU.Def = def })
	return New(cudatest.GPU, cudatest.Card)
}

// absorbedDims are columns of keys and of values that absorbed attention is compiled for.
var absorbedDims = [][2]int{{40, 32}, {72, 64}, {576, 512}}

func latentShape(dims [2]int, heads [2]int) kernels.Attn {
	return kernels.Attn{Heads: heads[0], KVHeads: heads[1], HeadDim: dims[0], ValueDim: dims[1],
		Scale: 1 / math.Sqrt(float64(dims[0]))}
}

func absorbedShape(dims [2]int, heads int) kernels.Attn {
	a := latentShape(dims, [2]int{heads, 1})
	a.Latent = true
	return a
}

// Shapes are compared with the CPU when a model is built; kernels of another definition are refused, and so are
// windows.
func TestCheckAttention(t *testing.T) {
	d := unchecked(t)
	x := kernels.Index{Heads: 16, Dim: 16, TopK: 8, Scale: 0.25}
	for i, dims := range absorbedDims {
		a := absorbedShape(dims, []int{2, 4, 128}[i])
		if err := d.CheckAttention(a); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
		if err := d.CheckSparseAttention(a, x); err != nil {
			t.Errorf("%+v, %+v: %v", a, x, err)
		}
		if err := d.CheckQuantizedCache(a); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
		a.Window = 5
		if err := d.CheckAttention(a); err == nil || !strings.Contains(err.Error(), "yet") {
			t.Errorf("%+v: %v", a, err)
		}
	}
	heads := kernels.Attn{Heads: 16, KVHeads: 2, HeadDim: 128, Scale: 0.1}
	for _, a := range []kernels.Attn{heads, latentShape([2]int{192, 128}, [2]int{4, 4})} {
		if err := d.CheckQuantizedCache(a); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
	d.shapes, d.c.Def.Exp2 = map[string]error{},
		map[kernels.Exp2Mode]kernels.Exp2Mode{kernels.Exp2Poly: kernels.Exp2Ex2h,
			kernels.Exp2Ex2h: kernels.Exp2Poly}[d.c.Def.Exp2]
	if err := d.CheckAttention(absorbedShape(absorbedDims[0], 2)); err == nil ||
		!strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("another definition than the kernels': %v", err)
	}
	if err := d.CheckQuantizedCache(heads); err == nil ||
		!strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("pages in codes by another definition: %v", err)
	}
}

// The self-test can fail: kernels compiled for another 2^x are refused.
func TestCheckCard(t *testing.T) {
	d := unchecked(t)
	if err := d.CheckCard(); err != nil {
		t.Errorf("the card as it is: %v", err)
	}
	d.c.Def.Exp2 = kernels.Exp2Ex2h // while its kernels are those of poly
	if err := d.CheckCard(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
