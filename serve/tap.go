package serve

import (
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"lockstep/kernels"
	"lockstep/model"
)

// outcome is what one operation of a forward wrote, row by row. Two forwards of one graph on the same batch have the
// same operations in the same order.
type outcome struct {
	place  string // "embedding", "block 3 / moe", "head"
	op     string // "matmul down_proj", "combine"
	values []float32
}

func (o outcome) String() string { return o.place + " / " + o.op }

// tap is a device that hands over what every operation of a forward writes. Operations that only move rows, and logits,
// of which the log-probabilities tell, are left out.
type tap struct {
	kernels.Device
	// of a device that has them: a model that needs what the device lacks was refused when it was built
	kernels.DeltaNet
	kernels.Mamba
	kernels.SparseAttention

	out    chan outcome
	place  string
	places map[unsafe.Pointer]string // by the weight of the norm that begins them
	names  map[unsafe.Pointer]string // of weights
}

// headPlace is where the logits are.
const headPlace = "head"

func newTap(dev kernels.Device, m *model.Model) *tap {
	t := &tap{Device: dev, out: make(chan outcome), place: "embedding", places: map[unsafe.Pointer]string{},
		names: map[unsafe.Pointer]string{}}
	t.DeltaNet, _ = dev.(kernels.DeltaNet)
	t.Mamba, _ = dev.(kernels.Mamba)
	t.SparseAttention, _ = dev.(kernels.SparseAttention)
	for _, p := range m.Params {
		t.names[p.W.Data] = strings.TrimSuffix(p.Name, ".weight")
	}
	for i, bl := range m.Blocks {
		for _, sub := range bl {
			t.places[sub.Norm.W.W.Data] = fmt.Sprintf("block %d / %s", i,
				strings.ToLower(reflect.TypeOf(sub.Layer).Elem().Name()))
			for _, l := range sub.Layer.Linears() {
				if l.W.W.Groups == 1 {
					for _, s := range l.Subs {
						t.names[l.W.W.RowRange(s.From, s.To).Data] = s.Module
					}
				}
			}
		}
	}
	t.places[m.Head.Norm.W.W.Data] = headPlace
	return t
}

// saw hands over a tensor.
func (t *tap) saw(op string, x kernels.Tensor) {
	o := outcome{place: t.place, op: op, values: make([]float32, 0, x.Len())}
	whole := []kernels.Tensor{x}
	if !x.Contiguous() {
		whole = whole[:0]
		for r := range x.Rows {
			whole = append(whole, x.RowRange(r, r+1))
		}
	}
	for _, part := range whole {
		if x.DType != kernels.I32 {
			o.values = append(o.values, model.ReadValues(t.Device, part)...)
			continue
		}
		ints := make([]int32, part.Len())
		t.Device.Read(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ints))), 4*len(ints)), part)
		for _, v := range ints {
			o.values = append(o.values, float32(v))
		}
	}
	t.out <- o
}

func (t *tap) Embed(out, table, ids kernels.Tensor) {
	t.place = "embedding"
	t.Device.Embed(out, table, ids)
	t.saw("embed", out)
}

func (t *tap) Add(out, a, b kernels.Tensor) {
	t.Device.Add(out, a, b)
	t.saw("add", out)
}

func (t *tap) AddBias(out, x, bias kernels.Tensor, g *kernels.Groups) {
	t.Device.AddBias(out, x, bias, g)
	t.saw("bias", out)
}

func (t *tap) Scale(out, x kernels.Tensor, a float32) {
	t.Device.Scale(out, x, a)
	t.saw("scale", out)
}

func (t *tap) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	if place, ok := t.places[w.Data]; ok {
		t.place = place
	}
	t.Device.RMSNorm(out, rstd, x, w, norm)
	t.saw("norm", out)
}

func (t *tap) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	t.Device.HeadNormRope(out, rstd, x, w, positions, rope, norm)
	t.saw("rope", out)
}

func (t *tap) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	t.Device.MatMul(out, g, terms...)
	if t.place == headPlace {
		return
	}
	name := t.names[terms[0].W.Data]
	t.saw(strings.TrimSpace("matmul "+name[strings.LastIndex(name, ".")+1:]), out)
}

func (t *tap) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	t.Device.Attention(out, lse, q, kv, l, a)
	t.saw("attention", out)
}

func (t *tap) Sinks(out, lse, sinks kernels.Tensor) {
	t.Device.Sinks(out, lse, sinks)
	t.saw("sinks", out)
}

func (t *tap) Route(weights, experts, probs, logits kernels.Tensor, r kernels.Router) {
	t.Device.Route(weights, experts, probs, logits, r)
	t.saw("route", weights)
	t.saw("choice", experts)
}

func (t *tap) Combine(out, y, weights, rowOf kernels.Tensor) {
	t.Device.Combine(out, y, weights, rowOf)
	t.saw("combine", out)
}

func (t *tap) SwiGLU(out, gu kernels.Tensor) {
	t.Device.SwiGLU(out, gu)
	t.saw("swiglu", out)
}

func (t *tap) ClampedSwiGLU(out, gu kernels.Tensor, c kernels.Clamp) {
	t.Device.ClampedSwiGLU(out, gu, c)
	t.saw("swiglu", out)
}

func (t *tap) LogProb(logprob, stats, logits, targets, inv kernels.Tensor) {
	t.Device.LogProb(logprob, stats, logits, targets, inv)
	t.saw("logprob", logprob)
}
