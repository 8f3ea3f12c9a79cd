//go:build cuda

package model_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cuda"
	"lockstep/model"
	"lockstep/parallel"
)

// A release whose weights stay in codes on a GPU is the model of the same release opened on the CPU, on every bit. The
// test needs a GPU or the emulated one (.ci/emulate/package).
func TestKeptOnGPUIsOpened(t *testing.T) {
	for name, r := range releases(t) {
		t.Run(name, func(t *testing.T) {
			def := kernels.Default()
			def.Dot, def.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
			if slices.Contains(latent, filepath.Base(r.dir)) {
				def.Latent = kernels.LatentAbsorbed // GPUs have sparse attention in this form alone
			}
			dir, ids := r.write(t), openGolden(t, r.dir).ids("ids.0")
			want := trainAdapters(t, dir, def, model.Options{DType: kernels.BF16}, ids)
			dev, err := cuda.New(def, 0)
			if err != nil {
				t.Fatal(err)
			}
			err = parallel.Run([]kernels.Device{dev}, func(rank *parallel.Rank) error {
				o := model.Options{DType: kernels.BF16, Weights: model.KeepWeights}
				got, err := trainAdaptersOn(rank, dir, o, ids)
				if err == nil && !strings.Contains(got.said, "kept in codes") {
					t.Errorf("says %q", got.said)
				}
				mustEqual(t, got, want)
				return err
			})
			if err := errors.Join(err, dev.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
