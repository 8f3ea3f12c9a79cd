//go:build cuda

package serve

import (
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
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

// sparse reports whether an indexer chooses keys.
func sparse(c breakCase) bool { return c.family == "glm5" || c.family == "glm5_shared" }
