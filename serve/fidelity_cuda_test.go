//go:build cuda

package serve

import (
	"reflect"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/kernels/cuda"
	"lockstep/model"
	"lockstep/parallel"
)

// A GPU's table is the CPU's, on every bit, with the other definition on a second device of the same card. The test
// needs a GPU or the emulated one (.ci/emulate/package).
func TestFidelityOnGPU(t *testing.T) {
	def := kernels.Default()
	def.Dot, def.Exp2 = kernels.DotTC16, kernels.Exp2Ex2h
	var tables []*Fidelity
	for _, open := range []func(kernels.Definition) (kernels.Device, error){
		func(def kernels.Definition) (kernels.Device, error) { return cuda.New(def, 0) },
		func(def kernels.Definition) (kernels.Device, error) { return cpu.New(def, cpu.Options{}) },
	} {
		dev, err := open(def)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		if err := parallel.Run([]kernels.Device{dev}, func(r *parallel.Rank) error {
			s, err := Open(nil, r, goldens+"qwen3_moe", "", model.Options{DType: kernels.BF16})
			if err != nil {
				return err
			}
			f, err := MeasureFidelity(t.Context(), s.Ranks, FidelityOptions{Tokens: 40, Open: open,
				Against: alternatives(t, def, "weights=mxfp8,acts=mxfp8", "weights=int4", "weights=mxfp4",
					"cache=mxfp8")})
			tables = append(tables, f)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if t.Logf("%s", tables[0]); !reflect.DeepEqual(tables[0], tables[1]) {
		t.Errorf("the CPU's:\n%s", tables[1])
	}
}
