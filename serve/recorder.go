package serve

import (
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"lockstep/kernels"
	"lockstep/model"
)

// opOutput is the output of one operation of a forward, row by row. Two forwards of one graph on the same batch run the
// same operations in the same order.
type opOutput struct {
	module string // "embedding", "block 3 / moe", "head"
	op     string // "matmul down_proj", "combine"
	values []float32
}

func (o opOutput) String() string { return o.module + " / " + o.op }

// recorder is a device that sends the output of every operation of a forward to a channel. It leaves out operations
// that only move rows, and logits, since log-probabilities show their differences.
type recorder struct {
	kernels.Device
	// Those that the device has. model.Build rejects a model that needs others.
	kernels.DeltaNet
	kernels.Mamba
	kernels.SparseAttention
	kernels.QuantizedProducts // what it computes is seen where a product reads it

	outputs     chan opOutput
	module      string
	modules     map[unsafe.Pointer]string // by the weight of their first operation, a norm
	weightNames map[unsafe.Pointer]string // of weights
}

// headModule computes the logits.
const headModule = "head"

func newRecorder(dev kernels.Device, m *model.Model) *recorder {
	rec := &recorder{Device: dev, outputs: make(chan opOutput), module: "embedding",
		modules:     map[unsafe.Pointer]string{},
		weightNames: map[unsafe.Pointer]string{}}
	rec.DeltaNet, _ = dev.(kernels.DeltaNet)
	rec.Mamba, _ = dev.(kernels.Mamba)
	rec.SparseAttention, _ = dev.(kernels.SparseAttention)
	rec.QuantizedProducts, _ = dev.(kernels.QuantizedProducts)
	for _, p := range m.Params {
		rec.weightNames[p.Address()] = strings.TrimSuffix(p.Name, ".weight")
	}
	for i, bl := range m.Blocks {
		for _, sub := range bl {
			rec.modules[sub.Norm.W.W.Data] = fmt.Sprintf("block %d / %s", m.Layer(i),
				strings.ToLower(reflect.TypeOf(sub.Layer).Elem().Name()))
			for _, l := range sub.Layer.Linears() {
				if l.W.W.Groups == 1 && l.W.Q == nil {
					for _, s := range l.Subs {
						rec.weightNames[l.W.W.RowRange(s.From, s.To).Data] = s.Module
					}
				}
			}
		}
	}
	rec.modules[m.Head.Norm.W.W.Data] = headModule
	return rec
}

// record sends the output x of an operation to the channel.
func (rec *recorder) record(op string, x kernels.Tensor) {
	o := opOutput{module: rec.module, op: op, values: make([]float32, 0, x.Len())}
	parts := []kernels.Tensor{x}
	if !x.Contiguous() {
		parts = parts[:0]
		for r := range x.Rows {
			parts = append(parts, x.RowRange(r, r+1))
		}
	}
	for _, part := range parts {
		if x.DType != kernels.I32 {
			o.values = append(o.values, model.ReadValues(rec.Device, part)...)
			continue
		}
		ints := make([]int32, part.Len())
		rec.Device.Read(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(ints))), 4*len(ints)), part)
		for _, v := range ints {
			o.values = append(o.values, float32(v))
		}
	}
	rec.outputs <- o
}

func (rec *recorder) Embed(out, table, ids kernels.Tensor) {
	rec.module = "embedding"
	rec.Device.Embed(out, table, ids)
	rec.record("embed", out)
}

func (rec *recorder) Add(out, a, b kernels.Tensor) {
	rec.Device.Add(out, a, b)
	rec.record("add", out)
}

func (rec *recorder) AddBias(out, x, bias kernels.Tensor, g *kernels.Groups) {
	rec.Device.AddBias(out, x, bias, g)
	rec.record("bias", out)
}

func (rec *recorder) Scale(out, x kernels.Tensor, a float32) {
	rec.Device.Scale(out, x, a)
	rec.record("scale", out)
}

func (rec *recorder) RMSNorm(out, rstd, x, w kernels.Tensor, norm kernels.Norm) {
	rec.enter(w)
	rec.Device.RMSNorm(out, rstd, x, w, norm)
	rec.record("norm", out)
}

// enter begins the module whose norm has the weight w, if one has.
func (rec *recorder) enter(w kernels.Tensor) {
	if place, ok := rec.modules[w.Data]; ok {
		rec.module = place
	}
}

func (rec *recorder) AddRMSNorm(out, sum, rstd, a, b, w kernels.Tensor, norm kernels.Norm) {
	rec.Device.AddRMSNorm(out, sum, rstd, a, b, w, norm)
	rec.record("add", sum) // it ends the module before
	rec.enter(w)
	rec.record("norm", out)
}

func (rec *recorder) HeadNormRope(out, rstd, x, w, positions kernels.Tensor, rope kernels.Rope, norm kernels.Norm) {
	rec.Device.HeadNormRope(out, rstd, x, w, positions, rope, norm)
	rec.record("rope", out)
}

func (rec *recorder) MatMul(out kernels.Tensor, g *kernels.Groups, terms ...kernels.Term) {
	rec.Device.MatMul(out, g, terms...)
	rec.product(out, terms)
}

func (rec *recorder) MatMulLoRA(out, u, x, a kernels.Tensor, scale float32, g *kernels.Groups, terms ...kernels.Term) {
	rec.Device.MatMulLoRA(out, u, x, a, scale, g, terms...)
	rec.product(u, []kernels.Term{{X: x, W: a}})
	rec.product(out, terms)
}

// product records the output of a product.
func (rec *recorder) product(out kernels.Tensor, terms []kernels.Term) {
	if rec.module == headModule {
		return
	}
	name := rec.weightNames[terms[0].At()]
	rec.record(strings.TrimSpace("matmul "+name[strings.LastIndex(name, ".")+1:]), out)
}

func (rec *recorder) Attention(out, lse, q kernels.Tensor, kv kernels.KV, l *kernels.Layout, a kernels.Attn) {
	rec.Device.Attention(out, lse, q, kv, l, a)
	rec.record("attention", out)
}

func (rec *recorder) Sinks(out, lse, sinks kernels.Tensor) {
	rec.Device.Sinks(out, lse, sinks)
	rec.record("sinks", out)
}

func (rec *recorder) Route(weights, experts, probs, logits kernels.Tensor, r kernels.Router) {
	rec.Device.Route(weights, experts, probs, logits, r)
	rec.record("route", weights)
	rec.record("top-k", experts)
}

func (rec *recorder) Combine(out, residual, y, weights, rowOf kernels.Tensor) {
	rec.Device.Combine(out, residual, y, weights, rowOf)
	rec.record("combine", out)
}

func (rec *recorder) SwiGLU(out, gu kernels.Tensor) {
	rec.Device.SwiGLU(out, gu)
	rec.record("swiglu", out)
}

func (rec *recorder) ClampedSwiGLU(out, gu kernels.Tensor, c kernels.Clamp) {
	rec.Device.ClampedSwiGLU(out, gu, c)
	rec.record("swiglu", out)
}

func (rec *recorder) LogProb(logprob, stats, logits, targets, inv kernels.Tensor) {
	rec.Device.LogProb(logprob, stats, logits, targets, inv)
	rec.record("logprob", logprob)
}
