package model_test

import (
	"slices"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

// rounding is a CPU that rounds what weights in codes read, product by product, on the host.
type rounding struct{ *cpu.Device }

func (d rounding) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	if t := &terms[0]; t.Q != nil {
		x := model.ReadValues(d, t.X)
		quant.MXFP8.Round(x, t.X.Rows, t.X.Cols)
		t.X = kernels.Wrap(x, t.X.Rows, t.X.Cols)
	}
	d.Device.MatMul(out, g, terms...)
}

// Definition.Acts is as if each product with a weight in codes rounded the rows that it reads, and those of adapters,
// routers, heads and gates none.
func TestActs(t *testing.T) {
	folder := func(c [2]string) (dir, adapter string) {
		if c[1] != "" {
			adapter = "testdata/adapters/" + c[1]
		}
		return "testdata/" + c[0], adapter
	}
	o := model.Options{Encode: model.DefaultEncode(quant.MXFP8)}
	def := kernels.Default()
	def.Acts = quant.MXFP8
	for _, c := range append(slices.Clone(copied), [2]string{"kimi_k2", ""}, [2]string{"nemotron_h_latent", ""}) {
		dir, adapter := folder(c)
		var want, plain, got []float32
		onRank(t, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, adapter, o)
			if err != nil {
				return err
			}
			plain = logitsOf(r.Dev, m)
			by := rounding{r.Dev.(*cpu.Device)}
			m.ComputeWith(by)
			want = logitsOf(by, m)
			return nil
		})
		onRankBy(t, def, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, adapter, o)
			if err == nil {
				got = logitsOf(r.Dev, m)
			}
			return err
		})
		if !slices.Equal(got, want) || slices.Equal(got, plain) {
			t.Errorf("%s: as rounded product by product: %t; as without: %t", c, slices.Equal(got, want),
				slices.Equal(got, plain))
		}
	}
}

// A definition that rounds what no weight reads is refused, with the mend.
func TestActsRefused(t *testing.T) {
	for name, set := range map[string]func(d *kernels.Definition){
		"acts":  func(d *kernels.Definition) { d.Acts = quant.MXFP8 },
		"grads": func(d *kernels.Definition) { d.Grads = quant.MXFP8 },
	} {
		def := kernels.Default()
		set(&def)
		onRankBy(t, def, func(r *parallel.Rank) error {
			_, err := model.LoadFolder(r.Dev, "testdata/qwen3_moe", "", model.Options{})
			if want := "definition." + name; err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "--weights") {
				t.Errorf("error %v, want one of %s", err, want)
			}
			return nil
		})
	}
}
