package model_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/kernels"
	"lockstep/kernels/cpu"
	"lockstep/model"
	"lockstep/parallel"
	"lockstep/quant"
)

// roundedKeys is a CPU whose attention rounds keys and values, on the host and by package quant.
type roundedKeys struct{ *cpu.Device }

// rounded is a copy of keys and values that are not in pages. Values that are columns of the keys are the latent: the
// keys' other columns have been rotated.
func (d roundedKeys) rounded(kv kernels.KV, a kernels.Attn) kernels.KV {
	if kv.V.Data == kv.K.Data {
		k := d.read(kv.K)
		latent := d.heads(kv.V, 1)
		for r := range kv.K.Rows {
			copy(k[r*kv.K.Cols:], latent[r*kv.V.Cols:(r+1)*kv.V.Cols])
		}
		kv.K = d.wrap(kv.K, k)
		kv.V = kv.K.ColRange(0, kv.V.Cols)
		return kv
	}
	return kernels.KV{K: d.wrap(kv.K, d.heads(kv.K, a.KVHeads)), V: d.wrap(kv.V, d.heads(kv.V, a.KVHeads))}
}

// heads are the numbers of x, each head rounded by itself.
func (d roundedKeys) heads(x kernels.Tensor, heads int) []float32 {
	all, width := d.read(x), x.Cols/heads
	for at := 0; at < len(all); at += width {
		quant.MXFP8.Round(all[at:at+width], 1, width)
	}
	return all
}

// read is the numbers of x, whose rows may lie apart.
func (d roundedKeys) read(x kernels.Tensor) []float32 {
	out := kernels.NewArena(d).New(x.DType, x.Rows, x.Cols)
	d.Copy(out, x)
	return model.ReadValues(d, out)
}

// wrap is a tensor of the type of x.
func (d roundedKeys) wrap(x kernels.Tensor, values []float32) kernels.Tensor {
	out := kernels.NewArena(d).New(x.DType, x.Rows, x.Cols)
	d.Copy(out, kernels.Wrap(values, x.Rows, x.Cols))
	return out
}

func (d roundedKeys) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	d.Device.Attention(out, lse, q, d.rounded(kv, a), l, a)
}

func (d roundedKeys) AttentionBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout,
	a kernels.Attn) {
	d.Device.AttentionBackward(dq, dk, dv, dout, out, lse, q, d.rounded(kv, a), l, a)
}

func (d roundedKeys) SparseAttend(out, lse, q kernels.Tensor, kv kernels.KV, selected kernels.Tensor,
	l *kernels.Layout, a kernels.Attn) {
	d.Device.SparseAttend(out, lse, q, d.rounded(kv, a), selected, l, a)
}

func (d roundedKeys) SparseAttendBackward(dq, dk, dv, dout, out, lse, q kernels.Tensor, kv kernels.KV,
	selected kernels.Tensor, l *kernels.Layout, a kernels.Attn) {
	d.Device.SparseAttendBackward(dq, dk, dv, dout, out, lse, q, d.rounded(kv, a), selected, l, a)
}

// spread makes the values of the first head so small that in a block with others codes would leave little of them.
func spread(r *parallel.Rank, m *model.Model) {
	for _, bl := range m.Blocks {
		for _, sub := range bl {
			if a, ok := sub.Layer.(*model.Attention); ok {
				w := a.QKV.W.W
				from := w.Rows - a.Shape.KVHeads*a.Shape.Values()
				head := w.RowRange(from, from+a.Shape.Values())
				r.Dev.Scale(head, head, 0x1p-18)
			}
		}
	}
}

// Definition.Cache is as if attention and its backward rounded the keys and values that they read, and nothing else
// did, whatever blocks keep: in every family, in full and with adapters.
func TestCache(t *testing.T) {
	eachForm(t, func(t *testing.T, family string, def kernels.Definition) {
		if def.Latent == kernels.LatentExpanded {
			return
		}
		dir := filepath.Join("testdata", family)
		g := openGolden(t, dir)
		one, two := g.ids("ids.0"), g.ids("ids.1")
		for dtype, dot := range map[kernels.DType]kernels.DotMode{kernels.F32: kernels.DotFMA,
			kernels.BF16: kernels.DotTC16} {
			def.Dot, def.Cache = dot, quant.AsTrained
			adapters := dtype == kernels.BF16
			var want, plain map[string][]float32
			onRankBy(t, def, func(r *parallel.Rank) error {
				m, err := learner(r, dir, dtype, adapters)
				if err != nil {
					return err
				}
				spread(r, m)
				plain = gradientsBy(r, m, nil, one, two)
				by := roundedKeys{r.Dev.(*cpu.Device)}
				m.ComputeWith(by)
				want = gradientsBy(&parallel.Rank{Dev: by, Stack: r.Stack}, m, nil, one, two)
				return nil
			})
			def.Cache = quant.MXFP8
			onRankBy(t, def, func(r *parallel.Rank) error {
				m, err := learner(r, dir, dtype, adapters)
				if err != nil {
					return err
				}
				spread(r, m)
				all := policies(m)
				for _, name := range []string{"everything", "nothing", "all results"} {
					if d := differs(gradientsBy(r, m, all[name], one, two), want); d != "" {
						t.Errorf("%s, adapters %t, %s kept: %s differs", dtype, adapters, name, d)
					}
				}
				return nil
			})
			if differs(plain, want) == "" {
				t.Errorf("%s: rounding makes no difference: the test cannot fail", dtype)
			}
		}
	})
}

// A rounding of what no attention caches is refused, with the mend.
func TestCacheRefused(t *testing.T) {
	def := kernels.Default()
	def.Cache = quant.MXFP8
	onRankBy(t, def, func(r *parallel.Rank) error {
		_, err := model.LoadFolder(r.Dev, "testdata/kimi_k2", "", model.Options{})
		if err == nil || !strings.Contains(err.Error(), "--latent absorbed") {
			t.Errorf("expanded latents: %v", err)
		}
		return nil
	})
}

// noCodesInPages is a CPU that refuses pages in codes, as a GPU whose trial differs does.
type noCodesInPages struct{ *cpu.Device }

func (noCodesInPages) CheckQuantizedCache(kernels.Attn) error { return errors.New("keys differ") }

// A model whose device refuses pages in codes has pages of numbers, and says so in a line with the reason.
func TestPagesOpened(t *testing.T) {
	def := kernels.Default()
	for _, c := range []struct {
		cache   quant.Encoding
		refuses bool
		want    string
	}{
		{quant.MXFP8, true, "cache: pages hold fp32, rounded to mxfp8, and no codes (keys differ)"},
		{quant.MXFP8, false, ""}, {quant.AsTrained, true, ""},
	} {
		def.Cache = c.cache
		onRankBy(t, def, func(r *parallel.Rank) error {
			if c.refuses {
				r = &parallel.Rank{Dev: noCodesInPages{r.Dev.(*cpu.Device)}, Stack: r.Stack}
			}
			m, err := model.LoadFolder(r.Dev, "testdata/qwen3", "", model.Options{})
			if err != nil {
				return err
			}
			if got := m.PagesOpened(); got != c.want {
				t.Errorf("%+v: %q", c, got)
			}
			kv := m.NewCache(r.Stack, model.CacheSize{Pages: 1, PageRows: 16, Slots: 1}).Layers[0].KV
			if want := c.cache == quant.MXFP8 && !c.refuses; (kv.Codes != nil) != want {
				t.Errorf("%+v: pages in codes: %t", c, kv.Codes != nil)
			}
			return nil
		})
	}
}
