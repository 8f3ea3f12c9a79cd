//go:build cuda

package model_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/model"
	"lockstep/parallel"
)

// On a GPU a meta device counts the workspaces too. It starts with the one that the tests of the card have left, as the
// real one does.
func TestMetaDeviceCUDA(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		dir := filepath.Join("testdata", family)
		for _, adapters := range []bool{false, true} {
			def.Dot, def.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
			dev, err := cuda.New(def, 0)
			if err != nil {
				t.Fatal(err)
			}
			err = parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
				o := model.Options{DType: kernels.BF16}
				plan, err := planned(r, dir, o, adapters)
				if err != nil {
					return err
				}
				dev.ReserveWorkspace(plan.workspace)
				real, err := live(r, adapters, func() (*model.Model, error) {
					return model.LoadFolder(r.Dev, dir, "", o)
				})
				if last := len(real.bytes) - 1; err == nil && real.bytes[last] != plan.bytes[last] {
					t.Errorf("adapters %t: %v\n took %v\nby plan %v", adapters, real.stages, real.bytes, plan.bytes)
				}
				return err
			})
			if err := errors.Join(err, dev.Close()); err != nil {
				if refused := err.Error(); strings.Contains(refused, "does not compute") ||
					strings.Contains(refused, "from the latent alone") {
					t.Skip(err) // the model needs what no GPU has a kernel for
				}
				t.Fatal(err)
			}
		}
	})
}
