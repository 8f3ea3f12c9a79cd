//go:build cuda

package serve

import (
	"fmt"
	"slices"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/cuda"
	"lockstep/model"
	"lockstep/parallel"
)

// A GPU decodes by a graph for each size of a batch to the CPU's answers, and once it has captured them it captures no
// more. The test needs a GPU or the emulated one (.ci/emulate/package).
func TestDecodeOnGPU(t *testing.T) {
	def := kernels.Default()
	def.Dot, def.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
	for _, family := range []string{"glm5", "qwen3_moe"} {
		card, err := cuda.New(def, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer card.Close()
		host, err := cpu.New(def, cpu.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		var answers [][]Result
		for _, d := range []kernels.Device{host, card} {
			if err := parallel.Run([]kernels.Device{d}, func(r *parallel.Rank) error {
				s, err := Open(nil, r, goldens+family, "", model.Options{DType: kernels.BF16})
				if err != nil {
					return err
				}
				e, err := NewEngine(r, s.Model, kernels.NewArena(d), Options{Slots: 11, PageRows: 4, PrefillRows: 512})
				if err != nil {
					return err
				}
				var captured []int
				for range 3 {
					res, err := e.Run(t.Context(), ladder(t, family))
					if err != nil {
						return err
					}
					answers, captured = append(answers, res), append(captured, card.Counts().Graphs)
				}
				if captured[1] != captured[2] {
					t.Errorf("%s: %v graphs after the first run and two more", family, captured)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		for i, res := range answers {
			if !slices.EqualFunc(res, answers[0], equal) {
				t.Errorf("%s: run %d gives other answers", family, i)
			}
		}
		for _, size := range []int{1, 2, 4, 8, 11} {
			if len(card.GraphCalls(fmt.Sprintf("decode %d", size))) == 0 {
				t.Errorf("%s: no graph of %d sequences", family, size)
			}
		}
	}
}
