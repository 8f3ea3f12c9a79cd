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
type rounding struct {
	*cpu.Device
	acts quant.Encoding
}

func (d rounding) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	if t := &terms[0]; t.Q != nil {
		x := model.ReadValues(d, t.X)
		if d.acts == quant.MXFP8 {
			quant.MXFP8.Round(x, t.X.Rows, t.X.Cols)
			t.X = kernels.Wrap(x, t.X.Rows, t.X.Cols)
		} else {
			q := kernels.NewQuantizedWeight(d.acts.Format(), kernels.BF16, 1, t.X.Rows, t.X.Cols,
				kernels.NewArena(d).NewGrouped)
			q.EncodeRows(d.acts, 0, x)
			t.X, t.XQ = q.Shape(), &q
		}
	}
	d.Device.MatMul(out, g, terms...)
}

func (d rounding) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	d.Device.MatMul(u, g, kernels.Term{X: x, W: a})
	d.Scale(u, u, scale)
	d.MatMul(out, g, terms...)
}

// Definition.Acts is as if each product with a weight in codes rounded the rows that it reads, and those of adapters,
// routers, heads and gates none.
func TestActs(t *testing.T) {
	def := kernels.Default()
	actsOf(t, def, quant.MXFP8, model.Options{Encode: model.DefaultEncode(quant.MXFP8)})
	def.Dot = kernels.DotTC16
	actsOf(t, def, quant.FP8x128, model.Options{Encode: model.DefaultEncode(quant.FP8), DType: kernels.BF16})
}

// actsOf is TestActs of a definition with acts and without.
func actsOf(t *testing.T, def kernels.Definition, acts quant.Encoding, o model.Options) {
	t.Helper()
	folder := func(c [2]string) (dir, adapter string) {
		if c[1] != "" {
			adapter = "testdata/adapters/" + c[1]
		}
		return "testdata/" + c[0], adapter
	}
	for _, c := range append(slices.Clone(copied), [2]string{"kimi_k2", ""}, [2]string{"nemotron_h_latent", ""}) {
		dir, adapter := folder(c)
		var want, plain, got []float32
		without := def
		def := def
		def.Acts = acts
		onRankBy(t, without, func(r *parallel.Rank) error {
			m, err := model.LoadFolder(r.Dev, dir, adapter, o)
			if err != nil {
				return err
			}
			plain = logitsOf(r.Dev, m)
			by := rounding{r.Dev.(*cpu.Device), acts}
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
			t.Errorf("%s, %s: as rounded product by product: %t; as without: %t", acts, c, slices.Equal(got, want),
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
	def := kernels.Default()
	def.Dot, def.Acts = kernels.DotTC16, quant.FP8x128
	onRankBy(t, def, func(r *parallel.Rank) error {
		for want, as := range map[string]quant.Encoding{
			"is for weights in e4m3 with fp32 scales of 128, and no projection": quant.AsTrained,
			"is in e4m3 with e8m0 scales of 32: set":                            quant.MXFP8,
		} {
			_, err := model.LoadFolder(r.Dev, "testdata/qwen3_moe", "", model.Options{DType: kernels.BF16,
				Encode: model.Encode{As: as, Projections: true}})
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		return nil
	})
}
