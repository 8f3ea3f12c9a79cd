//go:build cuda

package serve

import (
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/model"
)

// Verify catches every broken rule on a GPU too, with the forms of latent attention that it has. The test needs a GPU
// or the emulated one (.ci/emulate/package).
func TestVerifyCatchesOnGPU(t *testing.T) {
	seen := map[kernels.Break]bool{}
	for _, c := range breakCases(t) {
		if c.def.Dot != kernels.DotTC16 {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			dev, err := cuda.New(c.def, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			if sparse(c) && c.latent == kernels.LatentExpanded {
				t.Skip("GPUs have sparse attention in the absorbed form alone")
			}
			catches(t, c, dev, seen)
		})
	}
	t.Logf("caught: %v", seen)
}

// With keys and values in MXFP8 a GPU's decoding is its prefill is training in every family: its pages are in codes, of
// heads, of absorbed latents and of those that an indexer selects.
func TestVerifyCacheOnGPU(t *testing.T) {
	for _, c := range cacheCases(t) {
		c.def.Dot, c.def.Exp2, c.dtype = kernels.DotTC16, kernels.Exp2Ex2h, kernels.BF16
		t.Run(c.String(), func(t *testing.T) {
			dev, err := cuda.New(c.def, 0)
			if err != nil {
				t.Fatal(err)
			}
			onDevices(t, []kernels.Device{dev}, c, mesh{ranks: 1}, kernels.BreakNone, func(s *ServedModel) {
				if rep := verifyOn(t, s, VerifyOptions{Tokens: 300, Seed: 3}); rep.Err() != nil {
					t.Errorf("%v\n%s", rep.Err(), rep.Table())
				}
				c := s.Model.NewCache(s.Rank.Stack, model.CacheSize{Pages: 1, PageRows: 16, Slots: 1})
				if !slices.ContainsFunc(c.Layers, func(l model.LayerCache) bool { return l.KV.Codes != nil }) {
					t.Error("its pages are not in codes")
				}
			})
		})
	}
}

// Two GPUs compute what one of them does that has all weights, and sums by rank are noticed. The test needs two GPUs
// or the emulated ones.
func TestVerifyOnGPUs(t *testing.T) {
	caught := 0
	for _, c := range mixtures()[:4] { // softmax and sigmoid routers; dense and sparse attention
		if c.def.Dot != kernels.DotTC16 {
			continue
		}
		for _, m := range meshes {
			if m.ranks != 2 {
				continue
			}
			open := func(rule kernels.Break, body func(s *ServedModel)) {
				var list []kernels.Device
				for card := range m.ranks {
					dev, err := cuda.New(c.def, card)
					if err != nil {
						t.Fatal(err)
					}
					list = append(list, dev)
				}
				onDevices(t, list, c, m, rule, body)
			}
			open(kernels.BreakNone, func(s *ServedModel) {
				rep := verifyOn(t, s, VerifyOptions{Tokens: 300, Seed: 2})
				if err := rep.Err(); err != nil {
					t.Errorf("%s, %s: %v\n%s", c, m, err, rep.Table())
				}
			})
			if !m.experts {
				continue
			}
			open(kernels.BreakRankSums, func(s *ServedModel) {
				if err := verifyOn(t, s, VerifyOptions{Tokens: 192, Seed: 2}).Err(); err == nil {
					t.Errorf("%s: sums by rank went unnoticed", c)
				}
				caught++
			})
		}
	}
	if caught == 0 {
		t.Error("no mixture was tried")
	}
}

// sparse reports whether an indexer chooses keys.
func sparse(c breakCase) bool { return c.family == "glm5" || c.family == "glm5_shared" }
