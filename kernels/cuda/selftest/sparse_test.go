//go:build cuda

package selftest

import (
	"math"
	"strings"
	"testing"

	"lockstep/kernels"
)

// Shapes are compared with the CPU when a model is built whose indexers learn: those of the goldens and of GLM-5 pass,
// others and kernels of another definition are refused.
func TestCheckIndexerLoss(t *testing.T) {
	glm5, tiny := absorbedShape(absorbedDims[2], 64), absorbedShape(absorbedDims[0], 4)
	indexer := kernels.Index{Heads: 32, Dim: 128, TopK: 2048, Scale: 1 / math.Sqrt(128)}
	d := unchecked(t)
	for _, a := range []kernels.Attn{glm5, tiny} {
		for _, x := range []kernels.Index{indexer, {Heads: 16, Dim: 16, TopK: 8, Scale: 0.25}} {
			if err := d.CheckIndexerLoss(a, x); err != nil {
				t.Errorf("%+v, %+v: %v", a, x, err)
			}
		}
	}
	many := indexer
	many.Heads = 128
	if err := d.CheckIndexerLoss(glm5, many); err == nil || !strings.Contains(err.Error(), "128 heads of 128 yet") {
		t.Errorf("%+v: %v", many, err)
	}
	d.shapes, d.c.Def.Exp2 = map[string]error{},
		map[kernels.Exp2Mode]kernels.Exp2Mode{kernels.Exp2Poly: kernels.Exp2Ex2h,
			kernels.Exp2Ex2h: kernels.Exp2Poly}[d.c.Def.Exp2]
	if err := d.CheckIndexerLoss(tiny, indexer); err == nil ||
		!strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}

// Shapes are compared with the CPU when a model is built: those of the goldens and of GLM-5 pass where they are
// absorbed, others and kernels of another definition are refused.
func TestCheckSparseAttention(t *testing.T) {
	glm5, tiny := absorbedShape([2]int{576, 512}, 64), absorbedShape([2]int{40, 32}, 4)
	indexer := kernels.Index{Heads: 32, Dim: 128, TopK: 2048, Scale: 1 / math.Sqrt(128)}
	d := unchecked(t)
	for _, a := range []kernels.Attn{glm5, tiny} {
		for _, x := range []kernels.Index{indexer, {Heads: 16, Dim: 16, TopK: 8, Scale: 0.25}} {
			if err := d.CheckSparseAttention(a, x); err != nil {
				t.Errorf("%+v, %+v: %v", a, x, err)
			}
		}
	}
	narrow := indexer
	narrow.Dim = 64
	if err := d.CheckSparseAttention(glm5, narrow); err == nil || !strings.Contains(err.Error(), "32 heads of 64 yet") {
		t.Errorf("%+v: %v", narrow, err)
	}
	d.c.Def.Latent = kernels.LatentExpanded
	for _, a := range []kernels.Attn{latentShape([2]int{256, 256}, [2]int{64, 64}), latentShape([2]int{24, 16},
		[2]int{1, 1})} {
		for what, err := range map[string]error{"attention": d.CheckSparseAttention(a, indexer),
			"the indexer loss": d.CheckIndexerLoss(a, indexer)} {
			if err == nil || !strings.Contains(err.Error(), `this model needs definition.latent = "absorbed" or `+
				`"auto", not "expanded"`) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, expanded %+v: %v", what, a, err)
			}
		}
	}
	d.shapes, d.c.Def.Latent, d.c.Def.Exp2 = map[string]error{}, kernels.LatentAuto,
		map[kernels.Exp2Mode]kernels.Exp2Mode{kernels.Exp2Poly: kernels.Exp2Ex2h,
			kernels.Exp2Ex2h: kernels.Exp2Poly}[d.c.Def.Exp2]
	if err := d.CheckSparseAttention(tiny, indexer); err == nil ||
		!strings.Contains(err.Error(), "otherwise than the definition") {
		t.Errorf("another definition than the kernels': %v", err)
	}
}
