package model

import (
	"fmt"

	"lockstep/kernels"
	"lockstep/quant"
)

// builder makes the parameters and tables of a model, shapes without memory, while a family describes its blocks.
type builder struct {
	dev       kernels.Device // that is to compute the model; nil: none, the model is only described
	dtype     kernels.DType
	std       float64 // initializer_range
	limit     int     // positions asked for; 0: all
	indexing  IndexerStage
	positions int // of the model, once length was called
	params    []*Param
	placed    int // of them, those whose unit is known
	ropes     []rotary
	ops       *operations // of dev
	indexers  []*Indexer
	refusal   error // of a device that lacks what the model needs, or of a model too large to describe
	tensors   int   // of a checkpoint, so far
	elements  float64
}

// length is how many positions the model gets of the n that its config.json allows. A family calls it before it makes
// layers.
func (b *builder) length(n int) int {
	b.positions = n
	if b.limit > 0 {
		b.positions = min(n, b.limit)
	}
	return b.positions
}

// operations are the optional groups of operations of the device that a model computes with, nil where it lacks them.
// All layers of a model share one.
type operations struct {
	delta    kernels.DeltaNet
	mamba    kernels.Mamba
	sparse   kernels.SparseAttention
	indexing kernels.IndexerLoss
	divided  kernels.DividedAttention
	reader   kernels.MemoryReader
	coder    kernels.QuantizedProducts
	bounded  kernels.Bounded
	pages    kernels.QuantizedCache // where the definition has pages in codes too

	refusedPages error // why the first layer has pages of numbers all the same; nil: none has
}

// bind takes the groups that a device has.
func (o *operations) bind(dev kernels.Device) {
	o.delta, _ = dev.(kernels.DeltaNet)
	o.mamba, _ = dev.(kernels.Mamba)
	o.sparse, _ = dev.(kernels.SparseAttention)
	o.indexing, _ = dev.(kernels.IndexerLoss)
	o.divided, _ = dev.(kernels.DividedAttention)
	o.reader, _ = dev.(kernels.MemoryReader)
	o.coder, _ = dev.(kernels.QuantizedProducts)
	o.bounded, _ = dev.(kernels.Bounded)
	if o.pages, _ = dev.(kernels.QuantizedCache); dev == nil || dev.Definition().Cache == quant.AsTrained {
		o.pages = nil
	}
}

// require notes that the model needs an optional group of operations, an interface next to [kernels.Device]; what
// says what they compute, for the error.
func require[G any](b *builder, what string) {
	if b.dev == nil {
		return
	}
	if _, ok := b.dev.(G); !ok {
		b.refusal = fmt.Errorf("the device %s does not compute %s yet: this model needs another one", b.dev.Name(),
			what)
	}
}

// attn is a shape of attention, which the device must be able to compute.
func (b *builder) attn(a kernels.Attn) kernels.Attn {
	if d, ok := b.dev.(kernels.AttentionChecker); ok {
		b.refuse(d.CheckAttention(a))
	}
	return a
}

// latent is the definition's form of latent attention, which may be sparse. A description without a
// device has the default form.
func (b *builder) latent(sparse bool) kernels.LatentForm {
	if b.dev != nil && b.dev.Definition().Latent != kernels.LatentAuto {
		return b.dev.Definition().Latent
	}
	if sparse {
		return kernels.LatentAbsorbed
	}
	return kernels.LatentExpanded
}

// indexed is a shape of an indexer for attention of a shape, which the device must be able to compute.
func (b *builder) indexed(a kernels.Attn, x kernels.Index) kernels.Index {
	if d, ok := b.dev.(kernels.SparseAttentionChecker); ok {
		b.refuse(d.CheckSparseAttention(a, x))
	}
	if d, ok := b.dev.(kernels.IndexerLossChecker); ok && b.indexing != IndexersFrozen {
		b.refuse(d.CheckIndexerLoss(a, x))
	}
	return x
}

// recurrence is a shape of a recurrent layer, a delta rule or a state space, which the device must be able to compute.
func (b *builder) recurrence(r kernels.Recurrence, delta bool) kernels.Recurrence {
	if d, ok := b.dev.(kernels.RecurrenceChecker); ok {
		b.refuse(d.CheckRecurrence(r, delta))
	}
	return r
}

// refuse notes what the device says of a shape, if it cannot compute it.
func (b *builder) refuse(err error) {
	if err != nil {
		b.refusal = fmt.Errorf("the device %s %w", b.dev.Name(), err)
	}
}

// mostTensors limits the tensors of experts in a checkpoint: four times those of the largest published model.
const mostTensors = 1 << 18

// described is the shape of a tensor without memory.
func described(d kernels.DType, groups, rows, cols int) kernels.Tensor {
	return kernels.Tensor{DType: d, Groups: groups, Rows: rows, Cols: cols, Stride: cols}
}

// block adds a block to a model: the parameters made since the last one, or since the embedding, are its unit.
func (b *builder) block(m *Model, bl Block) {
	m.Blocks = append(m.Blocks, bl)
	b.place(max(b.placed, 1), len(m.Blocks))
}

// place gives the parameters from one on their unit.
func (b *builder) place(from, unit int) {
	for _, p := range b.params[from:] {
		p.unit = unit
	}
	b.placed = len(b.params)
}

func (b *builder) param(init Init, groups, rows, cols int, parts ...Part) *Param {
	return b.add(&Param{Name: parts[0].Name, W: described(b.dtype, groups, rows, cols), Parts: parts, Init: init})
}

// add takes a parameter into the model, whose elements are counted in fp64, as their product may overflow.
func (b *builder) add(p *Param) *Param {
	b.params = append(b.params, p)
	b.elements += float64(float64(p.W.Groups) * float64(p.W.Rows) * float64(p.W.Cols))
	if b.elements > mostElements && b.refusal == nil {
		b.refusal = fmt.Errorf("config.json asks for more than %d weights", mostElements)
	}
	return p
}

// matrix is one checkpoint tensor [rows, cols].
func (b *builder) matrix(name string, rows, cols int) *Param {
	return b.param(Init{Kind: Normal, Std: b.std}, 1, rows, cols, Part{Name: name, Rows: rows,
		Shape: []int{rows, cols}})
}

// vector is one checkpoint tensor [n].
func (b *builder) vector(name string, n int, init Init) *Param {
	return b.param(init, 1, 1, n, Part{Name: name, Rows: 1, Shape: []int{n}})
}

// fp32 is one checkpoint tensor [n] that stays fp32 whatever the model's storage.
func (b *builder) fp32(name string, n int, init Init) *Param {
	return b.add(&Param{Name: name, W: described(kernels.F32, 1, 1, n), Init: init,
		Parts: []Part{{Name: name, Rows: 1, Shape: []int{n}}}})
}

// conv is the checkpoint tensor [channels, 1, taps] of a depthwise convolution.
func (b *builder) conv(name string, channels, taps int) *Param {
	return b.param(Init{Kind: Normal, Std: b.std}, 1, channels, taps, Part{Name: name, Rows: channels,
		Shape: []int{channels, 1, taps}})
}

// buffer is one checkpoint tensor [n] that stays fp32 whatever the model's storage, and is never trained.
func (b *builder) buffer(name string, n int) *Param {
	p := b.fp32(name, n, Init{})
	p.Buffer = true
	return p
}

// norm is an RMSNorm over n columns.
func (b *builder) norm(name string, n int, settings kernels.Norm) *Norm {
	init := Init{Kind: Ones}
	if settings.PlusOne {
		init.Kind = Zeros
	}
	return &Norm{W: b.vector(name, n, init), Norm: settings}
}

// out is one of the projections that a Linear computes at once: a module of the checkpoint with rows outputs.
type out struct {
	module string
	rows   int
}

// linear stacks projections of the same input [in] into one weight [sum of rows, in].
func (b *builder) linear(in int, outs ...out) *Linear {
	l := &Linear{ops: b.ops}
	rows := 0
	var parts []Part
	for _, o := range outs {
		parts = append(parts, Part{Name: o.module + ".weight", Row: rows, Rows: o.rows, Shape: []int{o.rows, in}})
		l.Subs = append(l.Subs, &Sub{Module: o.module, From: rows, To: rows + o.rows})
		rows += o.rows
	}
	l.W = b.param(Init{Kind: Normal, Std: b.std}, 1, rows, in, parts...)
	return l
}

// reordered says where on disk the rows of projection i of a Linear lie, if not in order.
func (b *builder) reordered(l *Linear, i int, disk func(row int) int) {
	l.W.Parts[i].Disk, l.W.Parts[i].RowOnDisk = rowsOnDisk(disk, l.W.W.Cols), disk
	l.Subs[i].Disk = disk
}

// biased gives every projection of a Linear a bias, where on is set.
func (b *builder) biased(on bool, l *Linear) *Linear {
	for _, s := range l.Subs {
		if on {
			s.Bias = b.vector(s.Module+".bias", s.To-s.From, Init{Kind: Zeros})
		}
	}
	return l
}

// experts stacks the same projections of every expert: weight [n, sum of rows, in]. fused is the name that PEFT's
// target_parameters uses for it; module(e, i) names projection i of expert e on disk.
func (b *builder) experts(n, in int, fused string, rows []int, module func(e, i int) string) *Linear {
	total := 0
	var parts []Part
	if b.tensors += n * len(rows); b.tensors > mostTensors {
		b.refusal, n = fmt.Errorf("config.json asks for more than %d tensors", mostTensors), 1
	}
	for i, r := range rows {
		for e := range n {
			parts = append(parts, Part{Name: module(e, i) + ".weight", Group: e, Row: total, Rows: r,
				Shape: []int{r, in}})
		}
		total += r
	}
	l := &Linear{ops: b.ops, Subs: []*Sub{{Module: fused, To: total}}, Fused: true}
	l.W = b.param(Init{Kind: Normal, Std: b.std}, n, total, in, parts...)
	l.W.Name = fused
	return l
}

// packed lets a checkpoint hold the projections of all experts as one tensor [n, rows, in] too, under the Linear's
// name.
func (b *builder) packed(l *Linear) {
	w := l.W.W
	l.W.Packed = &Part{Name: l.W.Name, Rows: w.Groups * w.Rows, Shape: []int{w.Groups, w.Rows, w.Cols}}
}

// inOut is the projections of n experts that lie in one tensor [n, in, rows] with a bias [n, rows] each, name and
// name_bias. order says where an output lies on disk; nil: in its place.
func (b *builder) inOut(n, rows, in int, name string, order func(row int) int) *Linear {
	if order == nil {
		order = func(row int) int { return row }
	}
	part := Part{Name: name, Rows: n * rows, Shape: []int{n, in, rows}, Disk: func(i int) int {
		e, row, k := i/(rows*in), i/in%rows, i%in
		return (e*in+k)*rows + order(row)
	}, RowOnDisk: func(row int) int { return row/rows*rows + order(row%rows) }}
	bias := Part{Name: name + "_bias", Rows: n, Shape: []int{n, rows}, Disk: func(i int) int {
		return i/rows*rows + order(i%rows)
	}}
	l := &Linear{ops: b.ops, Subs: []*Sub{{Module: name, To: rows, Disk: order}}, Fused: true}
	l.W = b.param(Init{Kind: Normal, Std: b.std}, n, rows, in, part)
	l.Subs[0].Bias = b.param(Init{Kind: Zeros}, n, 1, rows, bias)
	return l
}
